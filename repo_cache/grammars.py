"""Which grammar reads a file, told by its name, and how a paragraph of such a file starts that is no prose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True)
class Grammar:
    """One language: the module of its wheel, the function there that gives the grammar, and what is special of it."""

    module: str
    function: str = "language"
    opening: re.Pattern[bytes] | None = None
    """What a paragraph starts with that is no text inside of a string; None: anything."""


# Docstrings and texts between triple quotes stand at a line's start as well, and read as prose.
_PYTHON = re.compile(
    rb"(?:async|class|def|del|elif|else|except|finally|for|from|global|if|import|match|raise|return|try|while|with)\b"
    rb"|[#@]|[\w.\[\]'\", ]+(?: [-+*/|&^%@]?=[ (\n]|=[^\s=]|: \w+ = )|[\w.]+\("
)
_MARKDOWN = re.compile(rb"#")

GRAMMARS = {
    "python": Grammar("tree_sitter_python", opening=_PYTHON),
    "javascript": Grammar("tree_sitter_javascript"),
    "typescript": Grammar("tree_sitter_typescript", "language_typescript"),
    "tsx": Grammar("tree_sitter_typescript", "language_tsx"),
    "go": Grammar("tree_sitter_go"),
    "rust": Grammar("tree_sitter_rust"),
    "java": Grammar("tree_sitter_java"),
    "c": Grammar("tree_sitter_c"),
    "cpp": Grammar("tree_sitter_cpp"),
    "csharp": Grammar("tree_sitter_c_sharp"),
    "ruby": Grammar("tree_sitter_ruby"),
    "php": Grammar("tree_sitter_php", "language_php"),
    "json": Grammar("tree_sitter_json"),
    "yaml": Grammar("tree_sitter_yaml"),
    "toml": Grammar("tree_sitter_toml"),
    "html": Grammar("tree_sitter_html"),
    "css": Grammar("tree_sitter_css"),
    "sql": Grammar("tree_sitter_sql"),
    "bash": Grammar("tree_sitter_bash"),
    "markdown": Grammar("tree_sitter_markdown", opening=_MARKDOWN),
}
# Headers count as C++: its grammar reads nearly all C, while C's reads no classes.
_SUFFIXES = {
    "python": "py pyi pyw",
    "javascript": "js jsx mjs cjs",
    "typescript": "ts mts cts",
    "tsx": "tsx",
    "go": "go",
    "rust": "rs",
    "java": "java",
    "c": "c",
    "cpp": "cc cpp cxx h hh hpp hxx",
    "csharp": "cs",
    "ruby": "rb rake gemspec",
    "php": "php",
    "json": "json jsonc ipynb",
    "yaml": "yaml yml",
    "toml": "toml",
    "html": "html htm",
    "css": "css",
    "sql": "sql",
    "bash": "sh bash zsh bats",
    "markdown": "md markdown",
}
_LANGUAGE_OF = {f".{suffix}": language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}


def language_of(path: str) -> str | None:
    """The language of a path ("python", "tsx", ...); None where there is no grammar: such a file is cut by lines."""
    return _LANGUAGE_OF.get(PurePosixPath(path).suffix.lower())
