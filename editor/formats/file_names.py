"""File names in an edit, and the kind of text that a file name stands for."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal

from editor.grammars import find_language

_FENCE_INFO = re.compile(r"(?:`{3,}|~{3,})\s*(?:[\w+#-]+[\s:]+)?(?P<name>[^\s`]+)\s*")
_LABEL = re.compile(r"^(?:file(?:name| ?path)?|path)\s*:\s*", re.IGNORECASE)
# One path: no blanks, and a dot with an extension, a slash, or one of the names that have neither.
_PATH = re.compile(r"(?:[\w.@+~()\[\]$-]+[/\\])*(?:[\w.@+~()\[\]$-]*\.[A-Za-z_][\w-]*|[\w@+~()\[\]$-]+)")
_BARE_NAMES = frozenset({"Makefile", "Dockerfile", "LICENSE", "README", "Procfile", "Gemfile", "Rakefile"})


def parse_file_name(line: str) -> str:
    """Return the path that a line names, '' if it names none."""
    fence = _FENCE_INFO.fullmatch(line.strip())
    if fence is not None:
        return _check_path(fence["name"])
    text = line.strip().removeprefix("//").lstrip("# ").strip().removeprefix("**").removesuffix("**")
    text = _LABEL.sub("", text.strip().rstrip(":").strip("*").strip())
    return _check_path(text.strip("`\"'").rstrip(":").strip())


def _check_path(text: str) -> str:
    if not _PATH.fullmatch(text) or text.startswith("...") or text.endswith("."):
        return ""
    has_form = "/" in text or "\\" in text or "." in text.strip(".") or text.startswith(".")
    return text if has_form or text in _BARE_NAMES else ""


Kind = Literal["code", "json", "markdown", "text", "patch", "unknown"]
"""`code` is everything with a syntax of its own: no code fence and no sentence is a line of it."""

_MARKDOWN = re.compile(r"\.(?:md|markdown|mkd|mdx|mdc|mdown|qmd|rmd)")
_TEXT = re.compile(
    r"\.(?:txt|text|rst|adoc|asciidoc|org|tex|log|prompt|j2|jinja2?|tmpl|tpl|hbs|mustache|liquid|[ct]sv|srt|vtt|po|feature)"
)
_TEXT_NAMES = re.compile(
    r"readme|license|copying|changelog|changes|contributing|notice|authors|news|todo|install", re.IGNORECASE
)
_JSON = re.compile(r"\.(?:jsonl|ndjson|code-workspace|tfstate|map|har|avsc|topojson|resolved|lock)")
# Data in JSON with another suffix (`config.json.example`), and settings such as `.firebaserc`.
_JSON_NAMES = re.compile(r".*\.json.*|\..*rc", re.IGNORECASE)
_PATCH = re.compile(r"\.(?:diff|patch|rej)")
# Names with the suffix of a text that are lists or programs.
_CODE_NAMES = re.compile(r"(?:requirements|constraints)[\w.-]*\.(?:txt|in)|cmakelists\.txt|robots\.txt", re.IGNORECASE)
_OTHER = re.compile(
    r"\.(?:xml|svg|vue|svelte|astro|kts?|swift|scala|sbt|lua|p[lm]|t|r|jl|dart|exs?|[eh]rl|hs|mli?|clj[cs]?|edn|tf|tfvars|"
    r"hcl|proto|graphql|gql|ini|cfg|conf|env|properties|gradle|cmake|ma?k|bat|cmd|psm?1|fish|nix|bzl|bazel|less|"
    r"s[ac]ss|styl|mm?|f|f90|asm|s|s?v|vhdl?|zig|nim|cr|groovy|ejs|pug|twig|erb|haml|slim|sol|prisma|plist|xaml|"
    r"(?:cs|fs|vb)proj|sln|vb|fs|pas|d|el|lisp|scm|rkt|tcl|awk|sed|cuh?|glsl|[wh][gl]sl|vert|frag|metal|dockerfile|"
    r"in|sum|mod|work|service|desktop|pot|template|example|sample|dist|snap)"
)
# Products whose names look like files.
_PRODUCTS = re.compile(
    r"(?:node|next|vue|react|nuxt|express|three|d3|chart|ember|backbone|angular|alpine|moment|p5)\.js|asp\.net|socket\.io",
    re.IGNORECASE,
)


def find_kind(path: str) -> Kind:
    """Return the kind of text that a path names; an unknown name without a suffix is code."""
    if not path:
        return "unknown"
    file = PurePosixPath(path.replace("\\", "/"))
    suffix = file.suffix.lower()
    if _MARKDOWN.fullmatch(suffix):
        return "markdown"
    if find_language(path) == "json" or _JSON.fullmatch(suffix) or _JSON_NAMES.fullmatch(file.name):
        return "json"
    if _PATCH.fullmatch(suffix):
        return "patch"
    is_text = _TEXT.fullmatch(suffix) or (not suffix and _TEXT_NAMES.fullmatch(file.name))
    return "text" if is_text and not _CODE_NAMES.fullmatch(file.name) else "code"


def is_label(name: str) -> bool:
    """Return whether a word in the form of a file name names something else (`self.items`)."""
    if _PRODUCTS.fullmatch(name) or name.startswith(("self.", "this.")):
        return True
    if "/" in name or "\\" in name or name.startswith(".") or "." not in name:
        return False
    suffix = PurePosixPath(name).suffix.lower()
    known = (_MARKDOWN, _TEXT, _JSON, _PATCH, _OTHER)
    return find_language(name) is None and not any(one.fullmatch(suffix) for one in known)


def do_paths_fit(path: str, other: str) -> bool:
    """Return whether two paths may mean one file: they are equal, or one is a suffix of the other."""
    one, two = path_parts(path), path_parts(other)
    size = min(len(one), len(two))
    return size > 0 and one[-size:] == two[-size:]


def path_parts(path: str) -> tuple[str, ...]:
    """Return the names in a path, without its root."""
    return tuple(part for part in PurePosixPath(path.replace("\\", "/")).parts if part != "/")
