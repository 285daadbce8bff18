"""The units of one level of a text, with what they are compared by."""

from __future__ import annotations

import re
from collections.abc import Sequence

from editor.lazy.edges import key
from editor.lazy.units import Unit

_KINDS = {"method": "function"}
_IMPORT = re.compile(r"\s*(?:import\b|from\s+\S+\s+import\b|use\s|using\s|#\s*include\b|require\b|const .*= require\()")
_TITLED = re.compile(r"\s*(?P<call>[\w.$]+)\s*\(\s*(?P<quote>[\"'`])(?P<title>.*?)(?P=quote)")
_MIN_TELLING = 3
# Parts the call from its first string in the name of a unit such as `it("adds", ...)`.
TITLE = "\0"


class Siblings:
    """The units of one level by index; markers have neither head nor name."""

    def __init__(self, lines: Sequence[str], units: Sequence[Unit]) -> None:
        self.units = units
        self.heads = ["" if unit.is_marker else lines[unit.core].strip() for unit in units]
        self._lines = lines
        self._texts: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._by_definition: dict[tuple[str, str], list[int]] | None = None
        self._by_head: dict[str, list[int]] | None = None

    def shows_definition(self, definition: tuple[str, str] | None) -> Sequence[int]:
        """Return the units that are this definition."""
        if self._by_definition is None:
            self._by_definition = {}
            for at, unit in enumerate(self.units):
                if (own := self.definition(at)) is not None and not unit.is_marker and not unit.continues:
                    self._by_definition.setdefault(own, []).append(at)
        return self._by_definition.get(definition, ()) if definition else ()

    def shows_head(self, head: str) -> Sequence[int]:
        """Return the units with this first line, if it tells something."""
        if self._by_head is None:
            self._by_head = {}
            for at, unit in enumerate(self.units):
                if not unit.is_marker and not unit.continues and sum(map(str.isalnum, self.heads[at])) > _MIN_TELLING:
                    self._by_head.setdefault(self.heads[at], []).append(at)
        return self._by_head.get(head, ())

    def text(self, at: int) -> str:
        """Return a unit's lines from its core on, without indentation and blank lines."""
        if at not in self._texts:
            unit = self.units[at]
            stripped = (line.strip() for line in self._lines[unit.core : unit.end])
            self._texts[at] = "\n".join(line for line in stripped if line)
        return self._texts[at]

    def name(self, at: int) -> str:
        """Return the name of a definition, or what the first line is about; '' if that cannot be told."""
        if at not in self._names:
            titled = _TITLED.match(self.heads[at])
            guess = f"{titled['call']}{TITLE}{titled['title']}" if titled else key(self.heads[at])
            self._names[at] = self.units[at].name or guess
        return self._names[at]

    def is_import(self, at: int) -> bool:
        """Tell whether a unit imports, includes or requires something."""
        return _IMPORT.match(self.heads[at]) is not None

    def definition(self, at: int) -> tuple[str, str] | None:
        """Return (kind, name) of a definition that the grammar knows; a method counts as a function."""
        unit = self.units[at]
        return (_KINDS.get(unit.kind, unit.kind), unit.name) if unit.kind else None
