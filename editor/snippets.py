"""The text of a lazy snippet: written out, parsed for its definitions, and split into units.

A snippet is code with placeholders, cut out of its class or function; no grammar reads it as it is.

A unit is a line with all deeper lines below it and the lines that continue it at its own indentation (closing brackets,
`else`, `</div>`). Comments and decorators directly above belong to it (`core` is the first line after them). Units nest
as the text does; blank lines belong to none. They work on a fragment as on a file, without a grammar as with one: where
the grammar names a definition, its unit reaches as far and bears the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from editor.definitions import Symbol
from editor.grammars import GRAMMARS
from editor.match.ladder import measure_width
from editor.placeholders import find_placeholders
from editor.syntax import Survey, survey
from editor.types import Sketch

_NAME = "hunk_snippet"
_FRAME_NAMES = re.compile(rf"^(?:{_NAME}\.)+")
_CLOSING = {"{": "}", "(": ")", "[": "]"}
_OPENING = {closing: opening for opening, closing in _CLOSING.items()}
_BRACKET = re.compile(r"[{}()\[\]]")
_QUOTE = re.compile(r"""["'`]|//""")
_REST_OF = {quote: re.compile(rf"(?:\\.|[^{quote}\\])*+{quote}") for quote in "\"'`"}

# Frames around members, and around statements, in the order in which they are tried.
_FRAMES = {
    "javascript": (f"class {_NAME} {{", f"function {_NAME}() {{"),
    "typescript": (f"class {_NAME} {{", f"function {_NAME}() {{"),
    "tsx": (f"class {_NAME} {{", f"function {_NAME}() {{"),
    "java": (f"class {_NAME} {{", f"void {_NAME}() {{"),
    "csharp": (f"class {_NAME} {{", f"void {_NAME}() {{"),
    "cpp": (f"class {_NAME} {{", f"void {_NAME}() {{"),
    "c": (f"void {_NAME}() {{",),
    "go": (f"func {_NAME}() {{",),
    "rust": (f"impl {_NAME} {{", f"fn {_NAME}() {{"),
    "php": (f"class {_NAME} {{", f"function {_NAME}() {{"),
    "json": ("{",),
    "css": (f"{_NAME} {{",),
}


def survey_snippet(lines: Sequence[str], language: str | None) -> Survey | None:
    """Parse a snippet as far as possible; None for a language without a grammar, or a snippet that is too large.

    Placeholders are skipped. If the grammar fails on the snippet as it is, open brackets are closed, and the snippet is
    parsed as the inside of a class or of a function. The parse with the fewest errors is returned, with the lines and
    names of the snippet. At the top level of a snippet "function" and "method" are no different kinds.
    """
    if language not in GRAMMARS:
        return None
    best: Survey | None = None
    for before, body, behind in _list_readings(lines, language):
        seen = survey("\n".join((before, *body, behind, "")), language)
        if seen is None:
            continue
        seen = _strip_frame(seen, len(lines))
        if not seen.error_lines:
            return seen
        if best is None or len(seen.error_lines) < len(best.error_lines):
            best = seen
    return best


def _list_readings(lines: Sequence[str], language: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield the texts to parse, likeliest first: a line before, the snippet's lines, a line after."""
    elided = find_placeholders(lines)
    blank = ["" if at in elided else line for at, line in enumerate(lines)]
    if language == "python":
        # A placeholder may be the whole body of a function.
        body = [re.sub(r"\S.*", "pass", line) if at in elided else line for at, line in enumerate(lines)]
        indented = next((line for line in blank if line.strip()), "").startswith((" ", "\t"))
        front = f"class {_NAME}:" if indented else ""
        yield from ((front, body, ""), (front, blank, ""))
    elif language in _FRAMES:
        tag = "<?php " if language == "php" and not any("<?" in line for line in lines) else ""
        yield from ((tag + before, blank, behind) for before, behind in _choose_frames(blank, language))
    else:
        yield "", blank, ""


def _choose_frames(lines: Sequence[str], language: str) -> Iterator[tuple[str, str]]:
    unopened, unclosed = _find_open_brackets(lines)
    closing = "".join(_CLOSING[bracket] for bracket in reversed(unclosed))
    frames = _FRAMES[language]
    end = "};" if language == "cpp" else "}"
    if not unopened:
        yield "", closing
        yield from ((frame, closing + end) for frame in frames)
    elif set(unopened) == {"}"}:
        inner = frames[-1].replace("function ", "") if len(unopened) > 1 and len(frames) > 1 else ""
        missing = "{" * (len(unopened) - 1 - bool(inner))
        yield from ((frame + inner + missing, closing) for frame in frames)
    else:
        yield "".join(_OPENING[bracket] for bracket in reversed(unopened)), closing
    yield "", ""


def _find_open_brackets(lines: Sequence[str]) -> tuple[str, str]:
    """Return the closing brackets without an opening one, and the opening ones that are never closed."""
    unopened: list[str] = []
    stack: list[str] = []
    for line in lines:
        for bracket in _BRACKET.findall(strip_strings(line, comments=True)):
            if bracket in _CLOSING:
                stack.append(bracket)
            elif stack and _CLOSING[stack[-1]] == bracket:
                stack.pop()
            elif not stack:
                unopened.append(bracket)
    return "".join(unopened), "".join(stack)


def strip_strings(line: str, *, comments: bool = False) -> str:
    """Return a line without quoted strings, and with `comments` without the comment after `//`."""
    kept: list[str] = []
    unclosed: set[str] = set()
    at = start = 0
    while found := _QUOTE.search(line, at):
        quote, at = found[0], found.end()
        if quote == "//":
            if comments:
                return "".join((*kept, line[start : found.start()]))
            continue
        # After a quote that is never closed every other quote of its kind is escaped, and closes nothing either.
        rest = None if quote in unclosed else _REST_OF[quote].match(line, at)
        if rest is None:
            unclosed.add(quote)
        else:
            kept.append(line[start : found.start()])
            start = at = rest.end()
    return "".join((*kept, line[start:]))


def _strip_frame(seen: Survey, num_lines: int) -> Survey:
    """Return a survey without the line before the snippet and the frame's own definitions, which come first."""
    hidden = 0
    while hidden < len(seen.symbols) and seen.symbols[hidden].simple_name == _NAME:
        hidden += 1
    errors = tuple(min(max(line - 1, 0), max(num_lines - 1, 0)) for line in seen.error_lines)
    return Survey(errors, tuple(_shift_symbol(symbol, hidden, num_lines) for symbol in seen.symbols[hidden:]))


def _shift_symbol(symbol: Symbol, hidden: int, num_lines: int) -> Symbol:
    name = _FRAME_NAMES.sub("", symbol.name)
    return replace(
        symbol,
        name=name,
        first_line=max(symbol.first_line - 1, 0),
        end_line=min(symbol.end_line - 1, num_lines),
        name_line=symbol.name_line - 1,
        body_line=None if symbol.body_line is None else min(symbol.body_line - 1, num_lines),
        doc_line=max(symbol.doc_line - 1, 0),
        parent=max(symbol.parent - hidden, -1),
        depth=symbol.depth - (len(symbol.name) - len(name)) // len(f"{_NAME}."),
    )


_MARKER_TEXT = "... existing code ..."
_MARKERS = {
    "css": f"/* {_MARKER_TEXT} */",
    "html": f"<!-- {_MARKER_TEXT} -->",
    "markdown": f"<!-- {_MARKER_TEXT} -->",
    "sql": f"-- {_MARKER_TEXT}",
} | dict.fromkeys(("python", "ruby", "yaml", "toml", "bash"), f"# {_MARKER_TEXT}")


def render_snippet(sketch: Sketch, language: str | None) -> str:
    """Return the snippet without a final newline; the markers are indented as they were sent, or as the next block."""
    marker = _MARKERS.get(language or "", f"// {_MARKER_TEXT}")
    gaps = iter(sketch.marker_indents)

    def render_markers(block: Sequence[str]) -> list[str]:
        return [indent + marker for indent in next(gaps, (get_block_indent(block),))]

    lines: list[str] = []
    for number, block in enumerate(sketch.blocks):
        if number or sketch.opens_elided:
            lines += render_markers(block)
        lines += block
    if sketch.closes_elided:
        lines += render_markers(sketch.blocks[-1])
    return "\n".join(lines)


def get_block_indent(block: Sequence[str]) -> str:
    """Return the indentation of the first line of a block that is not blank."""
    first = next((line for line in block if line.strip()), "")
    return first[: len(first) - len(first.lstrip())]


COMMENT = re.compile(r"\s*(//|#|/\*|\*(?=[\s/]|$)|--|<!--|;|%)")
_CONTINUES = re.compile(
    r"\s*(?:[)\]}>]|\{\s*$|</|/>|-->|\*/|(?:else|elif|elsif|except|finally|catch|rescue|ensure|end|fi|done|esac|then|do|"
    r"begin|END|ELSE|EXCEPTION)\b)"
)
_OPENS = re.compile(
    r".*[:{(\[>=,|]\s*(?:#.*|//.*)?$|\s*<\w|"
    r"\s*(?:def|class|module|if|unless|while|until|for|case|when|begin|do|function|struct|interface|CREATE|BEGIN)\b"
)
_ATTRIBUTE = re.compile(r"\s*(?:@[\w.]|#!?\[|\[\w[\w.()\", =]*\]\s*$)")
_COMMENT_END = re.compile(r".*(?:\*/|-->)\s*$")
MAX_DEPTH = 60
MARKER = "\0"
"""How a placeholder line is written in the lines that units are made of: no text has this character."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Lines [start, end) of a text; `parts` are the units inside, closing lines among them.

    `is_marker` tells a placeholder line. `continues` tells a line that goes on with its parent (`} else {`, `}`).
    `kind` and `name` are the definition's where the grammar knows one, else ''.
    """

    start: int
    core: int
    end: int
    width: int
    parts: tuple[Unit, ...]
    is_marker: bool = False
    continues: bool = False
    kind: str = ""
    name: str = ""

    @property
    def elides(self) -> bool:
        """Return whether a marker stands anywhere inside."""
        return self.is_marker or any(part.elides for part in self.parts)


def is_comment(line: str) -> bool:
    """Return whether a line is a comment, in any comment syntax."""
    return COMMENT.match(line) is not None


class _Builder:
    """Splits one text into units; `symbols` are the definitions by the line of their name."""

    def __init__(self, lines: Sequence[str], markers: frozenset[int], symbols: Mapping[int, Symbol]) -> None:
        self.lines = lines
        self.markers = markers
        self.symbols = symbols
        self.blank = [not line.strip() for line in lines]
        self.width = [measure_width(line) for line in lines]

    def build(self, start: int, end: int, depth: int = 0) -> tuple[Unit, ...]:
        """Return the units of lines [start, end), comments and attributes joined to what they stand above.

        There are none below `MAX_DEPTH` other units: lines that stand so deep are told apart no further.
        """
        if depth > MAX_DEPTH:
            return ()
        found: list[Unit] = []
        at = start
        while at < end:
            if self.blank[at]:
                at += 1
                continue
            unit = self._build_unit(at, end, depth, first=not found)
            at = unit.end
            found.append(unit)
        return tuple(self._join_leads(found))

    def _build_unit(self, at: int, end: int, depth: int, *, first: bool) -> Unit:
        if at in self.markers:
            return Unit(at, at, at + 1, self.width[at], (), is_marker=True)
        symbol = self.symbols.get(at)
        stop = self._find_end(at, end)
        if symbol is not None:
            stop = self._find_definition_end(at, min(end, max(stop, symbol.end_line)), end, symbol.kind)
        return Unit(
            at,
            at,
            stop,
            self.width[at],
            self.build(at + 1, stop, depth + 1),
            continues=not first and _CONTINUES.match(self.lines[at]) is not None,
            kind=symbol.kind if symbol else "",
            name=symbol.simple_name if symbol else "",
        )

    def _find_definition_end(self, at: int, stop: int, end: int, kind: str) -> int:
        """Return where a definition ends whose lines, by its text and the grammar, go to `stop`."""
        if not any(line in self.symbols for line in range(at + 1, stop)):
            return self._trim_markers(at, stop)
        if kind == "heading":
            # Behind its last section a chapter may go on; the grammar saw blank lines there.
            while stop < end and (self.blank[stop] or stop in self.markers):
                stop += 1
        return stop

    def _trim_markers(self, at: int, stop: int) -> int:
        """Return the end of a unit less the markers at its end that stand no deeper: they are its parent's."""
        last = stop - 1
        while last > at and (self.blank[last] or (last in self.markers and self.width[last] <= self.width[at])):
            last -= 1
        return last + 1

    def _find_end(self, at: int, end: int) -> int:
        """Return the end of the unit that begins at a line: deeper lines, and lines at its width that continue it."""
        width = self.width[at]
        last = at
        opened = _OPENS.match(self.lines[at]) is not None
        for line in range(at + 1, end):
            if self.blank[line]:
                continue
            if line in self.markers:
                touches = all(self.blank[between] for between in range(last + 1, line))
                if self.width[line] > width and touches and (opened or last > at):
                    last = line
                continue
            skipped = any(marker in self.markers for marker in range(last + 1, line))
            deeper = self.width[line] > width and (opened or not skipped)
            goes_on = self.width[line] == width and _CONTINUES.match(self.lines[line]) is not None
            if not (deeper or (goes_on and (last > at or opened))):
                break
            last = line
        return last + 1

    def _join_leads(self, found: Sequence[Unit]) -> list[Unit]:
        """Join comments and attributes to the units directly below them."""
        joined: list[Unit] = []
        lead: Unit | None = None
        for unit in found:
            if lead is not None:
                touching = lead.end == unit.start and not unit.is_marker and not unit.continues
                if touching and self._is_lead(unit):
                    lead = Unit(lead.start, lead.start, unit.end, lead.width, ())
                    continue
                if touching:
                    unit = replace(unit, start=lead.start)
                else:
                    joined.append(lead)
                lead = None
            if self._is_lead(unit):
                lead = unit
            else:
                joined.append(unit)
        return [*joined, lead] if lead is not None else joined

    def _is_lead(self, unit: Unit) -> bool:
        """Return whether a unit is a comment or an attribute, which belongs to what stands below it."""
        if unit.is_marker or unit.continues or unit.kind:
            return False
        head = self.lines[unit.start]
        if _ATTRIBUTE.match(head):
            return not head.rstrip().endswith(("{", ";"))
        return is_comment(head) and all(
            self.blank[at] or is_comment(self.lines[at]) or _COMMENT_END.match(self.lines[at])
            for at in range(unit.start, unit.end)
        )


def build_units(lines: Sequence[str], survey: Survey | None, markers: frozenset[int] = frozenset()) -> tuple[Unit, ...]:
    """Return the forest of a text; `markers` are the indices of its placeholder lines."""
    symbols: dict[int, Symbol] = {}
    for symbol in survey.symbols if survey is not None else ():
        symbols.setdefault(symbol.name_line, symbol)
    return _Builder(lines, markers, symbols).build(0, len(lines))


def flatten_sketch(sketch: Sketch) -> tuple[list[str], frozenset[int]]:
    """Return the snippet's lines, its markers, and where these stand."""
    num_gaps = sketch.opens_elided + len(sketch.blocks) - 1 + sketch.closes_elided
    indents = iter(sketch.marker_indents or [("",)] * num_gaps)
    lines: list[str] = []
    markers: set[int] = set()

    def add_markers() -> None:
        for space in next(indents):
            markers.add(len(lines))
            lines.append(space + MARKER)

    if sketch.opens_elided:
        add_markers()
    for number, block in enumerate(sketch.blocks):
        if number:
            add_markers()
        lines.extend(block)
    if sketch.closes_elided:
        add_markers()
    return lines, frozenset(markers)
