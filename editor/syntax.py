"""The door to tree-sitter: syntax errors of a text, and its definitions with names and extents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from tree_sitter import Language, Node, Parser, Query, QueryCursor

from editor.definitions import Captures, Symbol, find_definitions
from editor.execution import cache_results, check_stopped, is_stopped
from editor.grammars import GRAMMARS

MAX_BYTES = 4_000_000
"""Larger texts are not parsed: a tree takes about fifty times the memory of its text."""

MAX_SYMBOLS = 20_000
"""Definitions of one text that are described, at about 20 us each: a text with more is a table, not a program."""

# A cursor takes quadratic time over the children of an error node, which are not in a balanced tree.
_MAX_ERROR_WORK = 100_000_000
_MAX_START_DEPTH = 1_000
_CHUNK_BYTES = 1 << 16
# tree-sitter 0.26.1 keeps a reference to every buffer that it reads, for ever: so these few are reused.
_BUFFERS: list[bytearray] = []
_READS_PER_BYTE = 50
_READ_ALLOWANCE = 8_000_000
_CALLS_PER_BYTE = 0.1
_CALL_ALLOWANCE = 500
# A check for cancellation costs a microsecond, a call of the parser's a tenth of that.
_CALLS_PER_LOOK = 32
_MAX_YAML_BLOCKS = 200
_KEPT_CHARS = 1_000_000
_QUOTES = re.compile(rb"\"{8,}|'{8,}|`{8,}")
_ROWS = (b'"' * 8, b"'" * 8, b"`" * 8)
_MAX_QUOTES = 10_000
_YAML_INDICATOR = re.compile(rb"[-?:](?=\s|$)")
_LINKAGE = re.compile(
    rb"^([ \t]*#[ \t]*if(?:def[ \t]+|[ \t]+defined[ \t]*\(?[ \t]*)__cplusplus[ \t]*\)?[ \t]*\r?\n)"
    rb"([ \t]*(?:(extern[ \t]+\"C\"[ \t]*\{)|\})[ \t]*)(?=\r?\n[ \t]*#[ \t]*endif\b)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of one parse: lines (from 0) with syntax errors, and definitions in text order.

    `has_symbols` is False if there are more than `MAX_SYMBOLS`; then `symbols` is empty.
    """

    error_lines: tuple[int, ...]
    symbols: tuple[Symbol, ...]
    has_symbols: bool = True


def survey(text: str, language: str | None) -> Survey | None:
    """Parse a text; None for a language without a grammar, and for a text that is too large or too broken."""
    if language not in GRAMMARS:
        return None
    # Some grammars want a newline at the end of the last statement; its absence is no error of an edit.
    text = text if text.endswith("\n") else text + "\n"
    return (_survey_cached if len(text) <= _KEPT_CHARS else _survey)(text, language)


def _survey(text: str, language: str) -> Survey | None:
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        return None
    if (language == "yaml" and _is_too_deep_for_yaml(data)) or _is_made_of_quotes(data):
        return None
    if language in ("c", "cpp"):
        data = _blank_linkage(data)
    root = _parse(data, _load_language(language))
    if root is None:
        return None
    errors = tuple(_find_errors(root))
    if sum(node.child_count**2 for node in errors) > _MAX_ERROR_WORK:
        return None
    error_lines = tuple(node.start_point[0] for node in errors)
    matches = list(_find_matches(root, language))
    if len(matches) > MAX_SYMBOLS:
        return Survey(error_lines, (), has_symbols=False)
    return Survey(error_lines, find_definitions(matches, data, headings=language == "markdown"))


# A merge surveys the texts of its readings, which attribution and verification survey again; trees are not kept.
_survey_cached = cache_results(12)(_survey)


def _parse(data: bytes, language: Language) -> Node | None:
    """Return the root of the tree, None if that takes far more work than any honest text. Work is counted, not timed.

    Twenty thousand unclosed `<!--` take the HTML scanner 18 s, as it scans to the end of the text for each: the text is
    passed in a bounded number of chunks. Three thousand take error recovery in Python's grammar 13 s: honest text,
    valid or broken, takes 0.002 to 0.015 calls of `is_too_long` for each byte, this text 5.
    """
    view, chunk = memoryview(data), _take_buffer()
    left = _READS_PER_BYTE * len(data) + _READ_ALLOWANCE
    calls_left = int(_CALLS_PER_BYTE * len(data)) + _CALL_ALLOWANCE

    def read(offset: int, _: object) -> bytearray:
        nonlocal left
        chunk[:] = view[offset : offset + _CHUNK_BYTES] if left > 0 else b""
        left -= len(chunk)
        return chunk

    def is_too_long(_offset: int, _has_error: bool) -> bool:
        nonlocal calls_left
        calls_left -= 1
        return calls_left < 0 or (calls_left % _CALLS_PER_LOOK == 0 and is_stopped())

    # Parsers hold state and are cheap to make: a new one each time is safe between threads.
    try:
        root = Parser(language).parse(read, progress_callback=is_too_long).root_node
    except ValueError:
        check_stopped()
        if calls_left >= 0:
            raise
        return None
    finally:
        _BUFFERS.append(chunk)
    return root if left > 0 else None


def _take_buffer() -> bytearray:
    try:
        return _BUFFERS.pop()
    except IndexError:
        return bytearray()


def _blank_linkage(data: bytes) -> bytes:
    """Return a header with blanks for `extern "C" {` and its `}`, each between `#ifdef __cplusplus` and `#endif`.

    A preprocessor sees both or none of them, but the grammars expect both brackets within one `#ifdef`.
    """
    found = list(_LINKAGE.finditer(data)) if b"__cplusplus" in data else []
    depth = 0
    for guard in found:
        depth += 1 if guard[3] else -1
        if depth not in (0, 1):
            return data
    return data if depth else _LINKAGE.sub(lambda guard: guard[1] + b" " * len(guard[2]), data)


def _is_too_deep_for_yaml(data: bytes) -> bool:
    """Return whether the scanner of tree-sitter-yaml 0.7.2 may crash the process: it keeps 250 open blocks at most.

    Every open block needs its own indentation or indicator, and at most two begin in one column.
    """
    return any(
        2 * (len(row) - len(row.lstrip())) + len(_YAML_INDICATOR.findall(row)) > _MAX_YAML_BLOCKS
        for row in data.split(b"\n")
        if 2 * len(row) > _MAX_YAML_BLOCKS
    )


def _is_made_of_quotes(data: bytes) -> bool:
    """Return whether a text holds long rows of quotes: outside of strings, error recovery takes 10 to 30 us each."""
    return any(row in data for row in _ROWS) and sum(len(row[0]) for row in _QUOTES.finditer(data)) > _MAX_QUOTES


def count_errors(text: str, language: str | None) -> int | None:
    """Return the number of syntax errors; None where `survey` gives None."""
    seen = survey(text, language)
    return None if seen is None else len(seen.error_lines)


def list_nodes(text: str, language: str | None) -> tuple[tuple[int, str, str], ...] | None:
    """Return every node of a text's tree in text order: its depth, its kind, and its text outside of its children.

    Two texts with equal nodes differ at most in white space without meaning. None where `survey` gives None.
    """
    if language not in GRAMMARS:
        return None
    data = (text if text.endswith("\n") else text + "\n").encode("utf-8", "replace")
    if len(data) > MAX_BYTES or (language == "yaml" and _is_too_deep_for_yaml(data)):
        return None
    root = _parse(data, _load_language(language))
    return None if root is None else tuple(_walk_nodes(root, data))


def _walk_nodes(root: Node, data: bytes) -> Iterator[tuple[int, str, str]]:
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        yield depth, node.type, _get_own_text(node, data)
        stack.extend((child, depth + 1) for child in reversed(node.children))


def _get_own_text(node: Node, data: bytes) -> str:
    """Return the text of a node outside of its children: all of a leaf, or a string's letters between its escapes."""
    starts = [node.start_byte, *(child.end_byte for child in node.children)]
    ends = [*(child.start_byte for child in node.children), node.end_byte]
    own = b"".join(data[start:end] for start, end in zip(starts, ends, strict=True)).decode("utf-8", "replace")
    is_text = not node.children or any(word in node.type for word in ("string", "template", "heredoc"))
    return own if is_text else own.strip()


@cache
def _load_language(name: str) -> Language:
    """Load a grammar at the first text in its language: all of them together take 0.1 s."""
    grammar = GRAMMARS[name]
    return Language(getattr(import_module(grammar.module), grammar.function)())


@cache
def _load_query(name: str) -> Query:
    return Query(_load_language(name), GRAMMARS[name].query)


def _find_errors(root: Node) -> Iterator[Node]:
    """Yield every error node and missing token; sound subtrees are not entered."""
    stack = [root] if root.has_error else []
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            yield node
        stack.extend(child for child in reversed(node.children) if child.has_error or child.is_missing)


def _find_matches(root: Node, language: str) -> Iterator[Captures]:
    """Yield the matches of the grammar's query for definitions."""
    cursor = QueryCursor(_load_query(language))
    # Below 32,768 levels a cursor takes quadratic time; such deep nesting is not searched for definitions.
    cursor.set_max_start_depth(_MAX_START_DEPTH)
    for _, captures in cursor.matches(root):
        yield captures
