"""The definitions of a lazy snippet: code with placeholders, cut out of its class or function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from editor.definitions import Symbol
from editor.grammars import GRAMMARS
from editor.placeholders import find_placeholders
from editor.syntax import Survey, survey

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
