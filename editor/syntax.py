"""The one door to tree-sitter for whole texts: syntax errors and the qualified names of definitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import tree_sitter_c
import tree_sitter_cpp
import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_json
import tree_sitter_python
import tree_sitter_rust
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser, Query, QueryCursor

MAX_BYTES = 4_000_000
"""Larger texts are not parsed: a tree costs some fifty times its text in memory."""

_GRAMMARS = {
    "python": tree_sitter_python.language,
    "javascript": tree_sitter_javascript.language,
    "typescript": tree_sitter_typescript.language_typescript,
    "tsx": tree_sitter_typescript.language_tsx,
    "go": tree_sitter_go.language,
    "rust": tree_sitter_rust.language,
    "java": tree_sitter_java.language,
    "c": tree_sitter_c.language,
    "cpp": tree_sitter_cpp.language,
    "json": tree_sitter_json.language,
}

_JAVASCRIPT = """
(class_declaration name: (_) @name) @def
(function_declaration name: (_) @name) @def
(generator_function_declaration name: (_) @name) @def
(method_definition name: (_) @name) @def
(variable_declarator name: (identifier) @name
  value: [(arrow_function) (function_expression) (generator_function) (class)]) @def
"""
_JAVASCRIPT_FIELD = "(field_definition property: (_) @name value: [(arrow_function) (function_expression)]) @def"
_TYPESCRIPT = """
(public_field_definition name: (_) @name value: [(arrow_function) (function_expression)]) @def
(abstract_class_declaration name: (_) @name) @def
(interface_declaration name: (_) @name) @def
(type_alias_declaration name: (_) @name) @def
(enum_declaration name: (_) @name) @def
(internal_module name: (_) @name) @def
(function_signature name: (_) @name) @def
(method_signature name: (_) @name) @def
(abstract_method_signature name: (_) @name) @def
"""
_C = """
(function_definition declarator: (function_declarator declarator: (_) @name)) @def
(function_definition declarator: (_ declarator: (function_declarator declarator: (_) @name))) @def
(struct_specifier name: (_) @name body: (_)) @def
(union_specifier name: (_) @name body: (_)) @def
(enum_specifier name: (_) @name body: (_)) @def
(type_definition declarator: (type_identifier) @name) @def
(preproc_function_def name: (_) @name) @def
"""
_CPP = """
(function_definition (reference_declarator (function_declarator declarator: (_) @name))) @def
(class_specifier name: (_) @name body: (_)) @def
(namespace_definition name: (_) @name) @def
"""
_DEFINITIONS = {
    "python": """
        (class_definition name: (_) @name) @def
        (function_definition name: (_) @name) @def
    """,
    "javascript": _JAVASCRIPT + _JAVASCRIPT_FIELD,
    "typescript": _JAVASCRIPT + _TYPESCRIPT,
    "tsx": _JAVASCRIPT + _TYPESCRIPT,
    "go": """
        (function_declaration name: (_) @name) @def
        (method_declaration receiver: (parameter_list (parameter_declaration type: (_) @scope)) name: (_) @name) @def
        (type_spec name: (_) @name) @def
    """,
    "rust": """
        (function_item name: (_) @name) @def
        (function_signature_item name: (_) @name) @def
        (struct_item name: (_) @name) @def
        (enum_item name: (_) @name) @def
        (union_item name: (_) @name) @def
        (trait_item name: (_) @name) @def
        (mod_item name: (_) @name) @def
        (type_item name: (_) @name) @def
        (macro_definition name: (_) @name) @def
        (impl_item type: (_) @name) @def
    """,
    "java": """
        (class_declaration name: (_) @name) @def
        (interface_declaration name: (_) @name) @def
        (enum_declaration name: (_) @name) @def
        (record_declaration name: (_) @name) @def
        (annotation_type_declaration name: (_) @name) @def
        (method_declaration name: (_) @name) @def
        (constructor_declaration name: (_) @name) @def
    """,
    "c": _C,
    "cpp": _C + _CPP,
    "json": "(pair key: (string (string_content) @name)) @def",
}


@dataclass(frozen=True, slots=True)
class Symbol:
    """One definition: its qualified name ("Outer.method") and the lines [first_line, end_line) it takes, from 0."""

    name: str
    first_line: int
    end_line: int

    @property
    def simple_name(self) -> str:
        """Return the name without its scopes."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Survey:
    """What one parse of a text showed: lines (from 0) where the grammar failed, and definitions in text order."""

    error_lines: tuple[int, ...]
    symbols: tuple[Symbol, ...]


def survey(text: str, language: str | None) -> Survey | None:
    """Parse a text once; None for a language without a grammar here, or a text that is too large."""
    if language not in _GRAMMARS:
        return None
    # Some grammars want a newline at the end of the last statement; its absence is no error of an edit.
    data = (text if text.endswith("\n") else text + "\n").encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        return None
    # Parsers hold state and are cheap to make: a new one each time is safe between threads.
    root = Parser(_language(language)).parse(data).root_node
    return Survey(tuple(_error_lines(root)), tuple(_symbols(root, language)))


def num_errors(text: str, language: str | None) -> int | None:
    """Return how many syntax errors tree-sitter finds; None where it cannot tell."""
    seen = survey(text, language)
    return None if seen is None else len(seen.error_lines)


def symbols(text: str, language: str | None) -> tuple[str, ...] | None:
    """Return the qualified names of all definitions in text order, repeated if defined again; None if unknown."""
    seen = survey(text, language)
    return None if seen is None else tuple(symbol.name for symbol in seen.symbols)


@cache
def _language(name: str) -> Language:
    return Language(_GRAMMARS[name]())


@cache
def _query(name: str) -> Query:
    return Query(_language(name), _DEFINITIONS[name])


def _error_lines(root: Node) -> Iterator[int]:
    """Yield the first line of every error node and missing token; sound subtrees are not entered."""
    stack = [root] if root.has_error else []
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            yield node.start_point[0]
        stack.extend(child for child in reversed(node.children) if child.has_error or child.is_missing)


def _symbols(root: Node, language: str) -> Iterator[Symbol]:
    """Yield definitions outermost first, each name qualified by the definitions around it."""
    found: dict[tuple[int, int], tuple[str, Node]] = {}
    for _, captures in QueryCursor(_query(language)).matches(root):
        node = captures["def"][0]
        scope = "".join(_text(part).strip("*& ") + "." for part in captures.get("scope", ()))
        found.setdefault((node.start_byte, -node.end_byte), (scope + _text(captures["name"][0]), node))
    around: list[tuple[int, str]] = []
    for (start, _), (name, node) in sorted(found.items(), key=lambda item: item[0]):
        while around and around[-1][0] <= start:
            around.pop()
        qualified = f"{around[-1][1]}.{name}" if around else name
        around.append((node.end_byte, qualified))
        yield Symbol(qualified, node.start_point[0], node.end_point[0] + 1)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")
