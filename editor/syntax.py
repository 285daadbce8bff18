"""The one door to tree-sitter for whole texts: syntax errors, and definitions with their names and extents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import import_module
from operator import itemgetter

from tree_sitter import Language, Node, Parser, Query, QueryCursor

from editor.grammars import CLASSES, GRAMMARS

MAX_BYTES = 4_000_000
"""Larger texts are not parsed: a tree costs some fifty times its text in memory."""
MAX_DEPTH = 50
"""Definitions nested deeper have no qualified name: brackets by the thousand would make names by the megabyte."""

# A cursor takes time by the square over the children of an error node, which are not in a balanced tree.
_MAX_ERROR_WORK = 100_000_000
_MAX_START_DEPTH = 1_000
_CHUNK_BYTES = 1 << 16
_READS_PER_BYTE = 50
_READ_ALLOWANCE = 8_000_000
_MAX_YAML_BLOCKS = 200
_KEPT_CHARS = 1_000_000
_YAML_INDICATOR = re.compile(rb"[-?:](?=\s|$)")
_OPENERS = b"{[(|>"
_BODIES = frozenset({"block", "keyframe_block_list", "column_definitions", "create_query", "function_body"})
_TAGGED = frozenset({"element", "script_element", "style_element"})
_HEADED = _TAGGED | {"table", "table_array_element"}

_Captures = Mapping[str, list[Node]]


@dataclass(frozen=True, slots=True)
class Symbol:
    """One definition. Lines count from 0; [first_line, end_line) holds its decorators, attributes and `export` too.

    `name` is qualified by the definitions around it ("Outer.method"), `simple_name` is not. `kind` is "function",
    "method", "class", "key", "heading" and the like (see `editor.grammars`). `name_line` is the line of the name.
    `body_line` is the first line behind the header: of an indented body, or behind the opening bracket; a definition
    that fits on one line has its body there; None without a body. `doc_line` is the first line of the comments that
    stand directly above, `first_line` where there are none. `parent` is the index in `Survey.symbols` of the
    definition around it, -1 at top level.
    """

    name: str
    simple_name: str
    kind: str
    first_line: int
    end_line: int
    name_line: int
    body_line: int | None
    doc_line: int
    parent: int = -1
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """What one parse of a text showed: lines (from 0) where the grammar failed, and definitions in text order."""

    error_lines: tuple[int, ...]
    symbols: tuple[Symbol, ...]


@dataclass(slots=True)
class _Findings:
    """The captures of one query run: definitions by where they stand, and what stands before them by where it ends."""

    data: bytes
    rows: Sequence[bytes]
    definitions: dict[tuple[int, int], tuple[str, _Captures]] = field(default_factory=dict)
    wrapped: dict[int, int] = field(default_factory=dict)
    leads: dict[int, int] = field(default_factory=dict)
    comments: dict[int, int] = field(default_factory=dict)

    def text(self, node: Node) -> str:
        return self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> str:
        return self.data[start:end].decode("utf-8", "replace")

    def lead(self, start: int, line: int) -> tuple[int, int]:
        """Return the first line of a definition with its decorators, and with the comments above as well."""
        first = self.wrapped.get(start, line)
        while first in self.leads:
            first = self.leads[first]
        doc = first
        while doc in self.comments or doc in self.leads:
            doc = self.comments.get(doc, self.leads.get(doc, doc))
        return first, doc


def survey(text: str, language: str | None) -> Survey | None:
    """Parse a text once; None for a language without a grammar here, and for a text that is too large or too broken."""
    if language not in GRAMMARS:
        return None
    # Some grammars want a newline at the end of the last statement; its absence is no error of an edit.
    text = text if text.endswith("\n") else text + "\n"
    return _survey_again(text, language) if len(text) <= _KEPT_CHARS else _survey(text, language)


def _survey(text: str, language: str) -> Survey | None:
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        return None
    if language == "yaml" and _is_too_deep_for_yaml(data):
        return None
    root = _parse(data, _language(language))
    if root is None:
        return None
    errors = tuple(_errors(root))
    if sum(node.child_count**2 for node in errors) > _MAX_ERROR_WORK:
        return None
    return Survey(tuple(node.start_point[0] for node in errors), _symbols(root, language, data))


# A merge surveys the text that its verification surveys again.
_survey_again = lru_cache(maxsize=4)(_survey)


def forget_surveys() -> None:
    """Drop what is remembered of the last texts, so that the next survey takes the time of a first one."""
    _survey_again.cache_clear()


def _parse(data: bytes, language: Language) -> Node | None:
    """Return the root of the tree, None where the scanner runs to the end of the text again and again.

    Twenty thousand `<!--` that never close take the HTML scanner 18 s, and the other grammars have something alike. So
    the text is handed over in chunks, and no more of them than any honest text asks for.
    """
    view = memoryview(data)
    left = _READS_PER_BYTE * len(data) + _READ_ALLOWANCE

    def read(offset: int, _: object) -> memoryview:
        nonlocal left
        chunk = view[offset : offset + _CHUNK_BYTES] if left > 0 else view[:0]
        left -= len(chunk)
        return chunk

    # Parsers hold state and are cheap to make: a new one each time is safe between threads.
    root = Parser(language).parse(read).root_node
    return root if left > 0 else None


def _is_too_deep_for_yaml(data: bytes) -> bool:
    """Tell whether the scanner of tree-sitter-yaml 0.7.2 may crash the process: it keeps 250 open blocks at most.

    Every open block has a line's indentation or an indicator of its own, two at most begin in one column.
    """
    return any(
        2 * (len(row) - len(row.lstrip())) + len(_YAML_INDICATOR.findall(row)) > _MAX_YAML_BLOCKS
        for row in data.split(b"\n")
        if 2 * len(row) > _MAX_YAML_BLOCKS
    )


def num_errors(text: str, language: str | None) -> int | None:
    """Return how many syntax errors tree-sitter finds; None where it cannot tell."""
    seen = survey(text, language)
    return None if seen is None else len(seen.error_lines)


def symbols(text: str, language: str | None) -> tuple[str, ...] | None:
    """Return the qualified names of all definitions in text order, repeated if defined again; None if unknown."""
    seen = survey(text, language)
    return None if seen is None else tuple(symbol.name for symbol in seen.symbols)


def nodes(text: str, language: str | None) -> tuple[tuple[int, str, str], ...] | None:
    """Return every node of a text's tree in text order: its depth, its kind, and its text outside of its children.

    Two texts of equal nodes differ at most in white space that means nothing. None where `survey` gives None.
    """
    if language not in GRAMMARS:
        return None
    data = (text if text.endswith("\n") else text + "\n").encode("utf-8", "replace")
    if len(data) > MAX_BYTES or (language == "yaml" and _is_too_deep_for_yaml(data)):
        return None
    root = _parse(data, _language(language))
    return None if root is None else tuple(_nodes(root, data))


def _nodes(root: Node, data: bytes) -> Iterator[tuple[int, str, str]]:
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        yield depth, node.type, _own_text(node, data)
        stack.extend((child, depth + 1) for child in reversed(node.children))


def _own_text(node: Node, data: bytes) -> str:
    """Return what of a node's text no child of it holds: all of a leaf, or a string's letters between its escapes."""
    starts = [node.start_byte, *(child.end_byte for child in node.children)]
    ends = [*(child.start_byte for child in node.children), node.end_byte]
    own = b"".join(data[start:end] for start, end in zip(starts, ends, strict=True)).decode("utf-8", "replace")
    is_text = not node.children or any(word in node.type for word in ("string", "template", "heredoc"))
    return own if is_text else own.strip()


@cache
def _language(name: str) -> Language:
    """Load a grammar when the first text in it comes: all at once take a tenth of a second."""
    grammar = GRAMMARS[name]
    return Language(getattr(import_module(grammar.module), grammar.function)())


@cache
def _query(name: str) -> Query:
    return Query(_language(name), GRAMMARS[name].query)


def _errors(root: Node) -> Iterator[Node]:
    """Yield every error node and missing token; sound subtrees are not entered."""
    stack = [root] if root.has_error else []
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            yield node
        stack.extend(child for child in reversed(node.children) if child.has_error or child.is_missing)


def _symbols(root: Node, language: str, data: bytes) -> tuple[Symbol, ...]:
    """Return definitions outermost first, each name qualified by the definitions around it."""
    found = _run(root, language, data)
    made: list[Symbol] = []
    nodes: list[Node] = []
    around: list[int] = []
    for (start, _), (kind, captures) in sorted(found.definitions.items(), key=itemgetter(0)):
        node = captures[kind][0]
        while around and nodes[around[-1]].end_byte <= start:
            around.pop()
        made.append(_symbol(node, kind, captures, found, made, around[-1] if around else -1))
        around.append(len(nodes))
        nodes.append(node)
    return tuple(_nested_by_level(made, nodes, found.rows) if language == "markdown" else made)


def _run(root: Node, language: str, data: bytes) -> _Findings:
    found = _Findings(data, data.split(b"\n"))
    cursor = QueryCursor(_query(language))
    # Below 32,768 levels a cursor takes time by the square; whoever nests so deep is not read for definitions.
    cursor.set_max_start_depth(_MAX_START_DEPTH)
    for _, captures in cursor.matches(root):
        if "wrap" in captures:
            found.wrapped[captures["wrapped"][0].start_byte] = captures["wrap"][0].start_point[0]
            continue
        # Predicates of the query language crash the process on a text that was parsed in chunks.
        if any(found.text(captures[name][0]) != name[4:] for name in captures if name.startswith("_is_")):
            continue
        kind = next(name for name in captures if name not in ("name", "scope") and name[0] != "_")
        node = captures[kind][0]
        if kind in ("lead", "comment"):
            first, column = node.start_point
            if not found.rows[first][:column].strip() and not found.rows[first].startswith(b"#!"):
                (found.leads if kind == "lead" else found.comments)[_end_line(node, found.rows)] = first
        else:
            found.definitions.setdefault((node.start_byte, -node.end_byte), (kind, captures))
    return found


def _symbol(
    node: Node, kind: str, captures: _Captures, found: _Findings, made: Sequence[Symbol], parent: int
) -> Symbol:
    body = _body(node, kind)
    named = captures["name"][0] if "name" in captures else None
    text = found.text(named) if named else found.between(node.start_byte, body.start_byte if body else node.end_byte)
    simple_name = name = _unquoted(" ".join(text.split()))
    for part in captures.get("scope", ()):
        name = f"{found.text(part).strip('*& ')}.{name}"
    depth = 0
    if parent >= 0:
        around = made[parent]
        depth = around.depth + 1
        if depth < MAX_DEPTH:
            name = f"{around.name}.{name}"
        if kind == "function" and around.kind in CLASSES:
            kind = "method"
    line = node.start_point[0]
    first, doc = found.lead(node.start_byte, line)
    return Symbol(
        name=name,
        simple_name=simple_name,
        kind=kind,
        first_line=first,
        end_line=_end_line(node, found.rows),
        name_line=named.start_point[0] if named else line,
        body_line=_body_line(node, body, found),
        doc_line=doc,
        parent=parent,
        depth=depth,
    )


def _body(node: Node, kind: str) -> Node | None:
    """Return the node that holds a definition's body; a value of one line (`"a": 1`) is none."""
    body = node.child_by_field_name("body") or node.child_by_field_name("accessors")
    if body is not None:
        return body
    for field_name in ("value", "right", "type") if kind == "type" else ("value", "right"):
        value = node.child_by_field_name(field_name)
        if value is not None:
            inner = value.child_by_field_name("body")
            return inner or (value if value.end_point[0] > value.start_point[0] else None)
    return next((child for child in node.children if child.type in _BODIES), None)


def _body_line(node: Node, body: Node | None, found: _Findings) -> int | None:
    if node.type in _HEADED:
        first = node.children[0].end_point[0] if node.type in _TAGGED else node.start_point[0]
        return first + 1 if node.end_point[0] > first else first
    if body is None:
        return None
    first = body.start_point[0]
    header = [child for child in node.children if child.end_byte <= body.start_byte and not child.is_extra]
    header_line = header[-1].end_point[0] if header else first
    if header_line == first or found.data[body.start_byte : body.start_byte + 1] in _OPENERS:
        return first + 1 if body.end_point[0] > first else first
    return header_line + 1


def _end_line(node: Node, rows: Sequence[bytes]) -> int:
    """Return the line behind a node, blank lines at its end left out."""
    first, (last, column) = node.start_point[0], node.end_point
    end = last + 1 if column else last
    while end > first + 1 and not rows[end - 1].strip():
        end -= 1
    return max(end, first + 1)


def _nested_by_level(headings: Sequence[Symbol], nodes: Sequence[Node], rows: Sequence[bytes]) -> list[Symbol]:
    """Give headings their sections: each reaches to the next of its level or above, whatever the tree says."""
    levels = [next(int(char) for child in node.children for char in child.type if char.isdigit()) for node in nodes]
    made: list[Symbol] = []
    around: list[int] = []
    for at, own in enumerate(headings):
        while around and levels[around[-1]] >= levels[at]:
            around.pop()
        below = (later for later in range(at + 1, len(headings)) if levels[later] <= levels[at])
        end = next((headings[later].first_line for later in below), len(rows))
        while end > own.end_line and not rows[end - 1].strip():
            end -= 1
        own = replace(own, body_line=own.end_line if end > own.end_line else None, end_line=end)
        if around:
            parent = made[around[-1]]
            name = f"{parent.name}.{own.name}"
            own = replace(own, name=name, parent=around[-1], depth=parent.depth + 1)
        made.append(own)
        around.append(at)
    return made


def _unquoted(name: str) -> str:
    bare = name[1:-1]
    return bare if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'`" and name[0] not in bare else name
