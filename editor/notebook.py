r"""Jupyter notebooks as the text of their cells, and back: everything but the changed sources keeps its bytes.

The text has one line `# %% [KIND NUMBER]` above each cell, as in the percent format of editors; between two of these
lines is the cell's source as it is, in markdown cells too. Format: nbformat 4, https://nbformat.readthedocs.io.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # of the standard library, but not in typeshed

BORDER = "# %% [{kind} {number}]"
_BORDER = re.compile(r"# %% \[\w+ \d+\]")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()

_EXTENSIONS = {"python": ".py", "r": ".r", "julia": ".jl", "javascript": ".js", "typescript": ".ts", "scala": ".scala"}
"""File names by the kernel's language, for the grammar of its cells."""


class CellsChangedError(Exception):
    """A text has other cells than its notebook: cells were added, removed, moved or joined."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell: its kind, its source, and where the value of `source` is in the notebook."""

    kind: str
    source: str
    start: int
    end: int


class Notebook:
    """A parsed notebook. `extension` is that of a file in its language."""

    def __init__(self, raw: str, cells: Sequence[_Cell], extension: str) -> None:
        self._raw, self._cells, self.extension = raw, cells, extension

    @property
    def text(self) -> str:
        r"""The text of all cells, with "\n" lines; it ends with a newline."""
        return "".join(
            f"{BORDER.format(kind=cell.kind, number=number)}\n{cell.source}\n"
            for number, cell in enumerate(self._cells, 1)
        )

    def replace_text(self, text: str) -> str:
        """Return the notebook with the sources of another text; raises CellsChangedError.

        Only the JSON of the changed sources is new, in the style of nbformat: a list with one string for each line.
        """
        parts, at = [], 0
        for cell, source in zip(self._cells, self._split(text), strict=True):
            if source != cell.source:
                parts += [self._raw[at : cell.start], self._encode(source, cell.start)]
                at = cell.end
        return "".join(parts) + self._raw[at:]

    def _split(self, text: str) -> list[str]:
        borders = [BORDER.format(kind=cell.kind, number=number) for number, cell in enumerate(self._cells, 1)]
        lines = text.split("\n")
        starts = [at for at, line in enumerate(lines) if _BORDER.fullmatch(line)]
        if [lines[at] for at in starts] != borders or starts[:1] != [0] * bool(borders):
            raise CellsChangedError("the edit adds, removes, moves or joins cells")
        ends = [*starts[1:], len(lines) - (lines[-1] == "")]
        return ["\n".join(lines[start + 1 : end]) for start, end in zip(starts, ends, strict=True)]

    def _encode(self, source: str, start: int) -> str:
        line = self._raw[self._raw.rfind("\n", 0, start) + 1 : start]
        indent = line[: len(line) - len(line.lstrip())]
        is_escaped = self._raw.isascii() and "\\u" in self._raw
        lines = [json.dumps(each, ensure_ascii=is_escaped) for each in source.splitlines(keepends=True)]
        if not lines:
            return "[]"
        if "\n" not in self._raw.rstrip():  # written without line breaks
            return f"[{', '.join(lines)}]"
        step = self._find_indent()
        return "[\n" + ",\n".join(f"{indent}{step}{each}" for each in lines) + f"\n{indent}]"

    def _find_indent(self) -> str:
        """Return one level of indentation."""
        found = re.match(r"\{\r?\n([ \t]+)", self._raw)
        return found[1] if found else " "


def parse_notebook(raw: str) -> Notebook | None:
    """Parse the text of a file; None if it is no notebook of nbformat 4, or has a cell with lines of our borders."""
    try:
        whole = json.loads(raw)
        cells = list(_find_cells(raw))
        language = whole.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if whole.get("nbformat") != 4 or not cells or any(_BORDER.search(cell.source) for cell in cells):
        return None
    return Notebook(raw, cells, _EXTENSIONS.get(str(language).lower(), ".py"))


def _find_cells(raw: str) -> Iterator[_Cell]:
    """Yield the cells of a notebook; raises ValueError, TypeError or KeyError where it is none."""
    for name, start, _ in _find_members(raw, _skip_space(raw, 0)):
        if name == "cells":
            for at in _find_items(raw, start):
                members = {key: (begin, end) for key, begin, end in _find_members(raw, at)}
                begin, end = members["source"]
                source = json.loads(raw[begin:end])
                text = source if isinstance(source, str) else "".join(source)
                yield _Cell(json.loads(raw[slice(*members["cell_type"])]), text, begin, end)


def _find_members(raw: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield the keys of the object at `at`, and where their values begin and end."""
    if raw[at] != "{":
        raise TypeError("no object")
    at = _skip_space(raw, at + 1)
    while raw[at] != "}":
        name, at = scanstring(raw, at + 1)
        start = _skip_space(raw, _skip_space(raw, at) + 1)  # the colon
        end = _DECODER.raw_decode(raw, start)[1]
        yield name, start, end
        at = _skip_comma(raw, end)


def _find_items(raw: str, at: int) -> Iterator[int]:
    """Yield where the items of the array at `at` begin."""
    if raw[at] != "[":
        raise TypeError("no array")
    at = _skip_space(raw, at + 1)
    while raw[at] != "]":
        yield at
        at = _skip_comma(raw, _DECODER.raw_decode(raw, at)[1])


def _skip_space(raw: str, at: int) -> int:
    found = _SPACE.match(raw, at)
    assert found is not None
    return found.end()


def _skip_comma(raw: str, at: int) -> int:
    at = _skip_space(raw, at)
    return _skip_space(raw, at + 1) if raw[at] == "," else at
