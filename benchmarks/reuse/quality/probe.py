"""One probe: a file before and after an edit, a question, and what the answer is under either."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ProbeClass = Literal["look-up", "conclusion", "insensitive"]
"""`look-up`: the answer stands in the edited lines. `conclusion`: it follows from them with what stands elsewhere.
`insensitive`: it is a text that the edit leaves alone."""

SENSITIVE: tuple[ProbeClass, ...] = ("look-up", "conclusion")


@dataclass(frozen=True, slots=True)
class Probe:
    """A question about a file that was edited; raises ValueError where the edit does not change the answer as it says.

    before, after: the file's texts, ASCII. question: what is asked; begun: how the answer begins, so that the wanted
    symbol or value comes next. right, stale: that symbol or value after and before the edit; both empty where the
    answer does not depend on it. symbols: names that the edit is about, old and new.
    """

    kind: str
    probe_class: ProbeClass
    file_name: str
    before: str
    after: str
    question: str
    begun: str
    right: str = ""
    stale: str = ""
    symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.before == self.after:
            raise ValueError("the edit changes nothing")
        if (self.probe_class == "insensitive") != (not self.right):
            raise ValueError("a probe has a right answer if and only if the edit changes it")
        if self.right and (holds(self.right, self.stale) or holds(self.stale, self.right)):
            raise ValueError("the stale answer is the right one")

    @property
    def edit_start(self) -> int:
        """The first character that the edit changes."""
        pairs = zip(self.before, self.after, strict=False)
        shorter = min(len(self.before), len(self.after))
        return next((at for at, (old, new) in enumerate(pairs) if old != new), shorter)

    def judged(self, answer: str) -> Literal["right", "stale", "other"]:
        """Which of the two comes first in an answer."""
        right, stale = _place(answer, self.right), _place(answer, self.stale)
        if right is None and stale is None:
            return "other"
        return "right" if stale is None or (right is not None and right < stale) else "stale"


def holds(text: str, symbol: str) -> bool:
    """Whether a text holds a name or a literal as a whole."""
    return _place(text, symbol) is not None


def _place(text: str, symbol: str) -> int | None:
    found = re.search(rf"(?<![\w.]){re.escape(symbol)}(?![\w]|\.\d)", text) if symbol else None
    return None if found is None else found.start()
