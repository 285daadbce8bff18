"""The text that hunks are put into: its lines without endings, and what was looked for in them."""

from __future__ import annotations

from editor.matching.index import LineIndex
from editor.matching.ladder import Places, find
from editor.patches.scopes import Scopes


class Target:
    """One text; every run of lines is looked for once."""

    def __init__(self, original: str, language: str | None = None) -> None:
        lines = original.split("\n")
        self.has_final_newline = lines[-1] == ""
        if self.has_final_newline:
            lines.pop()
        self.original = original
        self.lines = lines
        self.index = LineIndex(lines, language)
        self.scopes = Scopes(self.index)
        self._found: dict[tuple[str, ...], Places | None] = {}

    @property
    def blank_below(self) -> int:
        """Return the line from which on all lines are blank."""
        end = len(self.lines)
        while end and not self.lines[end - 1].strip():
            end -= 1
        return end

    def find(self, wanted: tuple[str, ...]) -> Places | None:
        """Return all places on the strictest rung that finds the lines; one of them must not be blank."""
        if wanted not in self._found:
            self._found[wanted] = find(self.index, wanted)
        return self._found[wanted]
