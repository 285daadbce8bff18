"""Markup around the blocks of an edit: code fences, file names, and stray parts of an edit.

Lines outside of blocks are talk and are left out. A change among them (a stray) would be lost, so it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from editor.errors import EditSyntaxError
from editor.grammars import find_language

_FENCE = re.compile(r"(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)")
_HEAD = re.compile(r"#{1,6} \S|---$|<!--|<p\b|<h1\b|<div\b|!?\[")
_INFO_WORD = re.compile(r"[^\s:{]+")
_MARKDOWN_INFOS = frozenset({"markdown", "md", "mdx"})
# What opens a literal or comment of several lines, and what closes it.
_LITERAL = re.compile(
    r'"""|\'\'\'|^\s*/\*|^\s*<!--|^\s*--\[\[|^\s*\{-|(?:[=(:,]|\breturn)\s*`(?=[^`]*$)|^=begin\b|^=pod\b'
)
_CLOSING = {"/*": "*/", "<!--": "-->", "--[[": "]]", "{-": "-}", "=begin": "=end", "=pod": "=cut"}


@dataclass(frozen=True, slots=True)
class Fence:
    """A code fence: its first and its last line, and the language that its info string names ('' if it names none).

    An unclosed fence ends with the last line of the text.
    """

    start: int
    end: int
    ticks: str
    info: str
    indent: str
    is_closed: bool

    def get_inside(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Return the lines between the two fence lines, without the indentation of the first."""
        rows = lines[self.start + 1 : self.end if self.is_closed else self.end + 1]
        return tuple(row.removeprefix(self.indent) for row in rows)


def strip_fence(lines: Sequence[str]) -> list[str]:
    """Return the lines inside of a fence that encloses everything; all lines if there is none."""
    fences = find_fences(lines)
    if len(fences) != 1 or not fences[0].is_closed:
        return list(lines)
    (fence,) = fences
    outside = (*lines[: fence.start], *lines[fence.end + 1 :])
    return list(lines if any(line.strip() for line in outside) else fence.get_inside(lines))


def is_fence(line: str) -> bool:
    """Return whether a line opens or closes a fence."""
    return _FENCE.fullmatch(line) is not None


def find_outer_fence(lines: Sequence[str], infos: tuple[str, ...]) -> range:
    """Return the lines inside the first fence if it has one of these info strings; none otherwise."""
    fence = next(iter(find_fences(lines)), None)
    if fence is None or not fence.is_closed or fence.info not in infos:
        return range(0)
    return range(fence.start + 1, fence.end)


def find_fences(lines: Sequence[str], *, indented: bool = False) -> tuple[Fence, ...]:
    """Return the outermost fences, at column 0 or (if `indented`) at any column, from top to bottom."""
    found: list[Fence] = []
    careful = True
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at])
        if opened is None or (opened["indent"] and not indented):
            at += 1
            continue
        closed = _find_closing(lines, at, opened, careful=careful)
        if closed is None and careful:
            careful = False
            closed = _find_closing(lines, at, opened, careful=False)
        end = len(lines) - 1 if closed is None else closed
        found.append(Fence(at, end, opened["ticks"], _parse_info(opened), opened["indent"], closed is not None))
        at = end + 1
    return tuple(found)


def is_in_literal(lines: Sequence[str], at: int) -> bool:
    """Return whether a line is inside of a string or comment of several lines that is closed below it."""
    closer = _find_literal_end(lines[:at])
    return bool(closer) and any(closer in line for line in lines[at:])


def _find_closing(lines: Sequence[str], opened: int, first: re.Match[str], *, careful: bool) -> int | None:
    """Return where a fence closes: an info string opens a nested fence, a bare one closes the innermost.

    With `careful` a bare one also opens a nested fence inside of a literal, and in Markdown if blank lines indicate it.
    """
    ticks = [first["ticks"]]
    head = next((line for line in lines[opened + 1 : opened + 6] if line.strip()), "")
    is_markdown = _parse_info(first) in _MARKDOWN_INFOS or (not _parse_info(first) and _HEAD.match(head) is not None)
    seen = opened + 1
    closer = ""
    for at in range(opened + 1, len(lines)):
        fence = _FENCE.fullmatch(lines[at])
        if fence is None or fence["indent"] != first["indent"] or fence["ticks"][0] != ticks[-1][0]:
            continue
        if fence["info"].strip():
            ticks.append(fence["ticks"])
            continue
        if len(fence["ticks"]) < len(ticks[-1]):
            continue
        if careful and len(ticks) == 1 and len(fence["ticks"]) == len(ticks[0]):
            closer = _find_literal_end(lines[seen:at], closer)
            seen = at
            if closer if not is_markdown else _is_nested(lines, opened, at):
                ticks.append(fence["ticks"])
                continue
        ticks.pop()
        if not ticks:
            return at
    return None


def _is_nested(lines: Sequence[str], opened: int, at: int) -> bool:
    """Return whether a bare fence in Markdown opens a code block: text follows directly, and a blank line is above.

    Without blank lines it opens one only if the outer fence has no line above it.
    """
    above = lines[at - 1].strip() if at - 1 > opened else ""
    below = lines[at + 1].strip() if at + 1 < len(lines) else ""
    if not below or is_fence(lines[at + 1]):
        return False
    return not above or not any(line.strip() for line in lines[:opened])


def _find_literal_end(lines: Sequence[str], closer: str = "") -> str:
    """Return what would close the literal that is open after these lines, '' if none is."""
    for line in lines:
        at = 0
        while True:
            if closer:
                end = line.find(closer, at)
                if end < 0:
                    break
                at, closer = end + len(closer), ""
            opened = _LITERAL.search(line, at)
            if opened is None:
                break
            text = opened[0].strip()
            at, closer = opened.end(), "`" if text.endswith("`") else _CLOSING.get(text, text)
    return closer


def _parse_info(fence: re.Match[str]) -> str:
    """Return the language of an info string; a file name alone is none."""
    word = _INFO_WORD.match(fence["info"].strip())
    return word[0].lower() if word and not re.search(r"[./\\]", word[0]) else ""


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


_LEADING = r"[\s>]*"
_MARKER = re.compile(
    rf"{_LEADING}(?:"
    r"<{5,9} ?(?:SEARCH|ORIGINAL|HEAD|UPDATED)\b.*|-{5,9} ?SEARCH\b.*|[>+]{5,9} ?(?:REPLACE|UPDATED)\b.*|<{7} \S.*|"
    r"@@(?: .*)?|\*\*\* (?:Begin Patch|(?:Add|Update|Delete) File:.*|Move to:.*)|diff --git .*|"
    r"</?(?:old_text|new_text|old_str|new_str|old_string|new_string|search|replace|file_text)\b[^>]*>.*|"
    r"(?:[{,]\s*+)?\"(?:old_string|new_string|old_str|new_str|oldText|newText|old_text|new_text|file_text)\"\s*:.*"
    r")",
    re.IGNORECASE,
)
_BARE_WORD = re.compile(r"\s*(?:SEARCH|REPLACE):?\s*")
_DIFF_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*(?:diff|patch)\s*", re.IGNORECASE)
_BARE_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*")
_NORMAL_DIFF = re.compile(r"\d+(?:,\d+)?[acd]\d+(?:,\d+)?")


def find_stray(lines: Sequence[str], outside: Iterable[int]) -> int | None:
    """Return the first line outside of an edit that looks like a part of an edit, or None."""
    talk = set(outside)
    return next((at for at in sorted(talk) if _is_stray(lines, at, talk)), None)


def refuse_strays(lines: Sequence[str], outside: Iterable[int], what: str) -> None:
    """Raise `EditSyntaxError` if a line outside of `what` (such as "the blocks") looks like a part of an edit."""
    at = find_stray(lines, outside)
    if at is not None:
        raise EditSyntaxError(
            "malformed",
            f"Line {at + 1} of the edit ('{lines[at].strip()[:60]}') looks like a part of an edit, but stands outside "
            f"of {what}: it would be lost.",
            "Send all changes in one format, each marker at the beginning of its line.",
        )


def is_normal_diff(lines: Sequence[str], at: int) -> bool:
    """Return whether a change of `diff` without `-u` begins here: '3c3' above '< old' or '> new'."""
    if at + 1 >= len(lines) or not _NORMAL_DIFF.fullmatch(lines[at].strip()):
        return False
    return lines[at + 1].lstrip().startswith(("< ", "> ", "<\t", ">\t"))


def is_context_diff(lines: Sequence[str], at: int) -> bool:
    """Return whether the hunks of a context diff (`diff -c`) begin here."""
    return lines[at].startswith("***************") and at + 1 < len(lines) and lines[at + 1].startswith("*** ")


def _is_stray(lines: Sequence[str], at: int, talk: set[int]) -> bool:
    line = lines[at]
    if _MARKER.fullmatch(line) or _BARE_WORD.fullmatch(line) or is_normal_diff(lines, at):
        return True
    if line.startswith("--- ") and at + 1 in talk and lines[at + 1].startswith("+++ "):
        return True
    return _DIFF_FENCE.fullmatch(line) is not None and _has_signs(lines, at + 1, talk)


def _has_signs(lines: Sequence[str], start: int, talk: set[int]) -> bool:
    """Return whether the fence opened above a line holds unread lines with signs."""
    at = start
    while at in talk and not _BARE_FENCE.fullmatch(lines[at]):
        if lines[at].lstrip()[:1] in {"+", "-"}:
            return True
        at += 1
    return False
