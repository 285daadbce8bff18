"""This package's interface to tree-sitter: grammars by file name, and the borders in a parsed text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import PurePosixPath
from zlib import crc32

from tree_sitter import Language, Node, Parser, Point, Tree

from repo_cache.incremental import TextChange


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language: the module of its wheel, the function that returns the grammar, and its rule for paragraphs."""

    module: str
    function: str = "language"
    opening: re.Pattern[bytes] | None = None
    """Matches the beginning of a paragraph that is not inside a string; None matches anything."""


# Lines of docstrings may also begin at column 0; they read as prose.
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


def find_language(path: str) -> str | None:
    """Return the language of a path ("python", "tsx", ...); None if there is no grammar, so it is cut by lines."""
    return _LANGUAGE_OF.get(PurePosixPath(path).suffix.lower())


MAX_BYTES = 4_000_000
"""Longer pieces are not parsed: a tree takes some fifty times its text in memory."""
MAX_LEVELS = 200
"""Deeper nodes are not visited."""
HASHED_BYTES = 48
"""The bytes after a border that are hashed: about a line."""

_CHUNK_BYTES = 1 << 16
# tree-sitter 0.26.1 never releases the buffers that a read callback returns, so these few are reused.
_BUFFERS: list[bytearray] = []
_READS_PER_BYTE = 50
_READ_ALLOWANCE = 8_000_000
_CALLS_PER_BYTE = 0.1
_CALL_ALLOWANCE = 500
_MAX_YAML_BLOCKS = 200
_MAX_INDENT = 200
_YAML_INDICATOR = re.compile(rb"[-?:](?=\s|$)")
_LEADS = frozenset({"attribute_item", "attribute_list", "decorator", "marginalia"})


@dataclass(frozen=True, slots=True)
class SyntaxTree:
    """A parsed piece of text. It is immutable, and its nodes may be read in several threads."""

    tree: Tree
    language: str
    num_bytes: int
    """The length of the text."""

    @property
    def has_error(self) -> bool:
        return self.tree.root_node.has_error


def parse(data: bytes, language: str | None) -> SyntaxTree | None:
    """Parse a piece of text; None for a language without a grammar, and for too long or too expensive a piece."""
    if not _is_parsable(data, language) or language is None:
        return None
    tree = _parse(data, language, None)
    return None if tree is None else SyntaxTree(tree, language, len(data))


def reparse(old: SyntaxTree, before: bytes, data: bytes, change: TextChange) -> SyntaxTree | None:
    """Parse the next version of a piece: the result of `parse`, at the cost of the change if the text has no errors.

    Error recovery depends on what is reused, so the tree of a broken text may differ from one parsed from scratch: if
    the old or the new tree has an error, everything is parsed again. Without errors both are a derivation of the same
    text by the same grammar; tests compare them.
    """
    if old.has_error or not _is_parsable(data, old.language):
        return parse(data, old.language)
    edited = old.tree.copy()
    edited.edit(
        change.start,
        change.old_end,
        change.new_end,
        _to_point(before, change.start),
        _to_point(before, change.old_end),
        _to_point(data, change.new_end),
    )
    tree = _parse(data, old.language, edited)
    if tree is None or tree.root_node.has_error:
        return parse(data, old.language)
    return SyntaxTree(tree, old.language, len(data))


def find_syntax_borders(tree: SyntaxTree, data: bytes, whole: int) -> tuple[list[int], list[int]]:
    """Return where a piece may be cut: increasing byte offsets, and the strength of each border.

    Borders precede named nodes: the children of the root, and recursively of every node of more than `whole` bytes. If
    a node is the first on its line, the border is at the line's start. Borders at a line's start are strongest; of
    these, those that cut through the fewest nodes; of these, those after a blank line. A border between a definition
    and the comment or attribute directly above it is weak. Ties are broken by a hash of the text after the border.
    """
    positions: list[int] = []
    strengths: list[int] = []
    cursor = tree.tree.walk()
    if not cursor.goto_first_child():
        return positions, strengths
    level, last, below_lead = 0, 0, False
    while True:
        node = cursor.node
        assert node is not None
        if node.is_named:
            start, indent = node.start_byte, node.start_point.column
            first_on_line = indent == 0 or (indent <= _MAX_INDENT and data[start - indent : start].isspace())
            position = start - indent if first_on_line else start
            kind = classify_line(data, position) if first_on_line else 1
            if position > last:
                last = position
                positions.append(position)
                rank = (first_on_line << 10) + ((MAX_LEVELS - level) << 2) + (0 if below_lead and kind == 1 else kind)
                strengths.append((rank << 32) + crc32(data[position : position + HASHED_BYTES]))
            below_lead = first_on_line and _is_lead(node)
            if node.end_byte - start > whole and level < MAX_LEVELS and cursor.goto_first_child():
                level, below_lead = level + 1, False
                continue
        while not cursor.goto_next_sibling():
            if level == 0 or not cursor.goto_parent():
                return positions, strengths
            level, below_lead = level - 1, False


def classify_line(data: bytes, start: int) -> int:
    """Return 2 for the first line and for a line after a blank one, else 1."""
    end = data[max(0, start - 2) : start]
    if not end.isspace():
        return 1 if end else 2
    above = data[max(0, start - _MAX_INDENT) : start - 1]
    blank = above[above.rfind(b"\n") + 1 :]
    return 2 if len(blank) < _MAX_INDENT - 1 and not blank.strip() else 1


def _is_lead(node: Node) -> bool:
    kind = node.type
    return "comment" in kind or kind in _LEADS


def _is_parsable(data: bytes, language: str | None) -> bool:
    if language not in GRAMMARS or len(data) > MAX_BYTES:
        return False
    return not (language == "yaml" and _is_too_deep_for_yaml(data))


def _parse(data: bytes, language: str, old: Tree | None) -> Tree | None:
    """Return the tree; None if the parse takes far more work than any honest text. Work is counted, since times vary.

    Twenty thousand `<!--` that are never closed take the HTML scanner 18 s, because it runs to the end of the text
    again and again. So the text is read in chunks, and the number of reads is limited. Three thousand take error
    recovery in Python's grammar 13 s: honest text, sound or broken, takes 0.002 to 0.015 calls of `is_too_long` a byte,
    this one 5.
    """
    view, chunk = memoryview(data), _acquire_buffer()
    left = _READS_PER_BYTE * len(data) + _READ_ALLOWANCE
    calls_left = _CALLS_PER_BYTE * len(data) + _CALL_ALLOWANCE

    def read(offset: int, _: object) -> bytearray:
        nonlocal left
        chunk[:] = view[offset : offset + _CHUNK_BYTES] if left > 0 else b""
        left -= len(chunk)
        return chunk

    def is_too_long(_offset: int, _has_error: bool) -> bool:
        nonlocal calls_left
        calls_left -= 1
        return calls_left < 0

    # Parsers have state and are cheap: a new one for each call is thread-safe.
    parser = Parser(_load_language(language))
    try:
        if old is None:  # it does not accept None
            tree = parser.parse(read, progress_callback=is_too_long)
        else:
            tree = parser.parse(read, old, progress_callback=is_too_long)
    except ValueError:
        if calls_left >= 0:
            raise
        return None
    finally:
        _BUFFERS.append(chunk)
    return tree if left > 0 else None


def _acquire_buffer() -> bytearray:
    try:
        return _BUFFERS.pop()
    except IndexError:
        return bytearray()


def _is_too_deep_for_yaml(data: bytes) -> bool:
    """Return whether the scanner of tree-sitter-yaml 0.7.2 may crash the process: it keeps at most 250 open blocks.

    Every open block has a line's indentation or an indicator of its own; at most two begin in one column.
    """
    return any(
        2 * (len(row) - len(row.lstrip())) + len(_YAML_INDICATOR.findall(row)) > _MAX_YAML_BLOCKS
        for row in data.split(b"\n")
        if 2 * len(row) > _MAX_YAML_BLOCKS
    )


def _to_point(data: bytes, offset: int) -> Point:
    row_start = data.rfind(b"\n", 0, offset) + 1
    return Point(data.count(b"\n", 0, row_start), offset - row_start)


@cache
def _load_language(name: str) -> Language:
    """Load a grammar at its first use: loading all at once takes a tenth of a second."""
    grammar = GRAMMARS[name]
    return Language(getattr(import_module(grammar.module), grammar.function)())
