"""The definitions of a parsed text as symbols with names and extents, from the matches of a query over its tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Protocol

from editor.grammars import CLASSES

MAX_DEPTH = 50
"""Definitions nested deeper get no qualified name: thousands of brackets would make names of megabytes."""

_OPENERS = b"{[(|>"
_BODIES = frozenset({"block", "keyframe_block_list", "column_definitions", "create_query", "function_body"})
_TAGGED = frozenset({"element", "script_element", "style_element"})
_HEADED = _TAGGED | {"table", "table_array_element"}


class SyntaxNode(Protocol):
    """The used part of tree-sitter's node (see `editor.syntax`); points are rows and byte columns from 0."""

    @property
    def type(self) -> str: ...
    @property
    def is_extra(self) -> bool: ...
    @property
    def start_byte(self) -> int: ...
    @property
    def end_byte(self) -> int: ...
    @property
    def start_point(self) -> tuple[int, int]: ...
    @property
    def end_point(self) -> tuple[int, int]: ...
    @property
    def children(self) -> Sequence[SyntaxNode]: ...
    def child_by_field_name(self, name: str, /) -> SyntaxNode | None: ...


Captures = Mapping[str, Sequence[SyntaxNode]]
"""One match of a grammar's query: the nodes of each capture name (see `editor.grammars`)."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """One definition. Lines count from 0; [first_line, end_line) holds its decorators, attributes and `export` too.

    `name` is qualified by the definitions around it ("Outer.method"), `simple_name` is not. `kind` is "function",
    "method", "class", "key", "heading" and the like (see `editor.grammars`). `name_line` is the line of the name.
    `body_line` is the first line after the header: of an indented body, or after the opening bracket; a definition
    that fits on one line has its body there; None without a body. `doc_line` is the first line of the comments that
    are directly above, `first_line` where there are none. `parent` is the index in `Survey.symbols` of the
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


@dataclass(slots=True)
class _Findings:
    """The captures of one query run: definitions by their range, and leads and comments by the line after them."""

    data: bytes
    rows: Sequence[bytes]
    definitions: dict[tuple[int, int], tuple[str, Captures]] = field(default_factory=dict)
    wrapped: dict[int, int] = field(default_factory=dict)
    leads: dict[int, int] = field(default_factory=dict)
    comments: dict[int, int] = field(default_factory=dict)

    def decode_node(self, node: SyntaxNode) -> str:
        return self.decode_range(node.start_byte, node.end_byte)

    def decode_range(self, start: int, end: int) -> str:
        return self.data[start:end].decode("utf-8", "replace")

    def find_lead(self, start: int, line: int) -> tuple[int, int]:
        """Return the first line of a definition with its decorators, and the first line of the comments above it."""
        first = self.wrapped.get(start, line)
        while first in self.leads:
            first = self.leads[first]
        doc = first
        while doc in self.comments or doc in self.leads:
            doc = self.comments.get(doc, self.leads.get(doc, doc))
        return first, doc


def find_definitions(matches: Iterable[Captures], data: bytes, *, headings: bool) -> tuple[Symbol, ...]:
    """Return definitions outermost first, each name qualified by the definitions around it.

    `matches` are those of the grammar's query over the tree of `data`; `headings` says that definitions are headings,
    whose sections the tree does not hold.
    """
    found = _collect_findings(matches, data)
    made: list[Symbol] = []
    nodes: list[SyntaxNode] = []
    around: list[int] = []
    for (start, _), (kind, captures) in sorted(found.definitions.items(), key=itemgetter(0)):
        node = captures[kind][0]
        while around and nodes[around[-1]].end_byte <= start:
            around.pop()
        made.append(_build_symbol(node, kind, captures, found, made, around[-1] if around else -1))
        around.append(len(nodes))
        nodes.append(node)
    return tuple(_nest_by_level(made, nodes, found.rows) if headings else made)


def _collect_findings(matches: Iterable[Captures], data: bytes) -> _Findings:
    found = _Findings(data, data.split(b"\n"))
    for captures in matches:
        if "wrap" in captures:
            found.wrapped[captures["wrapped"][0].start_byte] = captures["wrap"][0].start_point[0]
            continue
        # Predicates of the query language crash the process on a text that was parsed in chunks.
        if any(found.decode_node(captures[name][0]) != name[4:] for name in captures if name.startswith("_is_")):
            continue
        kind = next(name for name in captures if name not in ("name", "scope") and name[0] != "_")
        node = captures[kind][0]
        if kind in ("lead", "comment"):
            first, column = node.start_point
            if not found.rows[first][:column].strip() and not found.rows[first].startswith(b"#!"):
                (found.leads if kind == "lead" else found.comments)[_find_end_line(node, found.rows)] = first
        else:
            found.definitions.setdefault((node.start_byte, -node.end_byte), (kind, captures))
    return found


def _build_symbol(
    node: SyntaxNode, kind: str, captures: Captures, found: _Findings, made: Sequence[Symbol], parent: int
) -> Symbol:
    body = _find_body(node, kind)
    named = captures["name"][0] if "name" in captures else None
    text = (
        found.decode_node(named)
        if named
        else found.decode_range(node.start_byte, body.start_byte if body else node.end_byte)
    )
    simple_name = name = _unquote(" ".join(text.split()))
    for part in captures.get("scope", ()):
        name = f"{found.decode_node(part).strip('*& ')}.{name}"
    depth = 0
    if parent >= 0:
        around = made[parent]
        depth = around.depth + 1
        if depth < MAX_DEPTH:
            name = f"{around.name}.{name}"
        if kind == "function" and around.kind in CLASSES:
            kind = "method"
    line = node.start_point[0]
    first, doc = found.find_lead(node.start_byte, line)
    return Symbol(
        name=name,
        simple_name=simple_name,
        kind=kind,
        first_line=first,
        end_line=_find_end_line(node, found.rows),
        name_line=named.start_point[0] if named else line,
        body_line=_find_body_line(node, body, found),
        doc_line=doc,
        parent=parent,
        depth=depth,
    )


def _find_body(node: SyntaxNode, kind: str) -> SyntaxNode | None:
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


def _find_body_line(node: SyntaxNode, body: SyntaxNode | None, found: _Findings) -> int | None:
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


def _find_end_line(node: SyntaxNode, rows: Sequence[bytes]) -> int:
    """Return the line after a node, without blank lines at its end."""
    first, (last, column) = node.start_point[0], node.end_point
    end = last + 1 if column else last
    while end > first + 1 and not rows[end - 1].strip():
        end -= 1
    return max(end, first + 1)


def _nest_by_level(headings: Sequence[Symbol], nodes: Sequence[SyntaxNode], rows: Sequence[bytes]) -> list[Symbol]:
    """Return headings with their sections: each reaches to the next heading of its level or above."""
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


def _unquote(name: str) -> str:
    bare = name[1:-1]
    return bare if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'`" and name[0] not in bare else name
