"""Whether a text that is not the expected one is a legal reading of the edit, too: told without the checks of a merge.

A planted text is legal where one of these holds; the word in brackets is the reason that is given.

1. (`reading of the rules`) The rules write this very text, blank lines aside for a snippet: as their merge, or as a
   candidate of a snippet, or as one of the places of an ambiguous edit.
2. (`blank lines`) A snippet's result that differs from the expected one in blank lines only.
3. (`free place`) A snippet's result with the same new lines as the expected one and no more lines gone, where all
   blocks of the snippet stand in one piece and in their order: its markers leave the place open.
4. (`shown to go`) One line more of the file is gone, and the snippet shows its two neighbours side by side.
5. (`read as replaced`) One line more of the file is gone; it stood next to a run of new lines, on a side on which the
   snippet shows no line beside that run, and is like a new line of it that replaces nothing else.
6. (`shown elsewhere`) One line more of the file is gone; it stood there once, it stands once in the text, and the
   snippet shows it: the snippet may move it.

Explicit formats leave nothing open: for them only 1 holds. A snippet's result in which a line that is to be replaced
stands beside a new line that is like it is no legal reading. A text with more syntax errors than the expected one is no
legal reading, nor is a line without a letter or a digit replaced by another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from rapidfuzz import fuzz

from benchmarks.rendering import changes
from benchmarks.trust.corruptions import RightText
from editor.grammars import find_language
from editor.merge import merge
from editor.placeholders import holds_placeholder
from editor.syntax import count_errors
from editor.types import Merged, ParsedEdit, Sketch, Unresolved

_MIN_LIKENESS = 60


class Legal:
    """Judges the texts that were planted into one right result."""

    def __init__(self, right: RightText, edit: ParsedEdit) -> None:
        self._language = find_language(right.case.path)
        self._expected_text = right.text
        outcome = merge(right.source.text, edit, self._language)
        self.certain = outcome.text if isinstance(outcome, Merged) else None
        self._is_lazy = isinstance(edit.changes, Sketch)
        readings = {self.certain} if self.certain is not None else set()
        if isinstance(outcome, Unresolved) and (self._is_lazy or outcome.code == "ambiguous"):
            readings |= {candidate.text for candidate in outcome.candidates}
        self._readings = {self._key(text) for text in readings}
        self._old, self._expected = _solid(right.source.text), _solid(right.text)
        blocks = edit.changes.blocks if isinstance(edit.changes, Sketch) else ()
        self._blocks = [block for block in (_shown(block) for block in blocks) if block]

    def reason(self, text: str) -> str:
        """Say why a text other than the expected one is a legal reading, too; "" where it is none."""
        why = self._why(text)
        return why if why and not self._is_broken(text) else ""

    def _why(self, text: str) -> str:
        is_reading = self._key(text) in self._readings
        if not self._is_lazy:
            return "reading of the rules" if is_reading else ""
        lines = _solid(text)
        if self._keeps_what_is_replaced(lines):
            return ""
        if is_reading:
            return "reading of the rules"
        if lines == self._expected:
            return "blank lines"
        if self._is_free_place(lines):
            return "free place"
        at = _only_line_gone(self._expected, lines)
        if at is None or any(span.b_start <= at < span.b_end for span in changes(self._old, self._expected)):
            return ""
        if 0 < at < len(lines) and (lines[at - 1], lines[at]) in self._neighbours():
            return "shown to go"
        if self._is_replaced(at):
            return "read as replaced"
        gone = self._expected[at].strip()
        is_shown = any(gone == line.strip() for block in self._blocks for line in block)
        stand_once = all(sum(gone == line.strip() for line in some) == 1 for some in (self._old, lines))
        return "shown elsewhere" if is_shown and stand_once else ""

    def _is_broken(self, text: str) -> bool:
        found, expected = (count_errors(one, self._language) for one in (text, self._expected_text))
        return found is not None and expected is not None and found > expected

    def _key(self, text: str) -> str:
        return "\n".join(_solid(text)) if self._is_lazy else text

    def _neighbours(self) -> set[tuple[str, str]]:
        return {(one.strip(), two.strip()) for block in self._blocks for one, two in pairwise(block)}

    def _keeps_what_is_replaced(self, lines: Sequence[str]) -> bool:
        """Tell whether a line that the expected text replaces still stands, beside a new line that is like it."""
        new, gone = _difference(self._old, lines)
        kept = _difference(self._old, self._expected)[1] - gone
        return any(fuzz.ratio(old, line) >= _MIN_LIKENESS for old in kept for line in new)

    def _is_free_place(self, lines: Sequence[str]) -> bool:
        new, gone = _difference(self._old, lines)
        right_new, right_gone = _difference(self._old, self._expected)
        if new != right_new or gone - right_gone:
            return False
        chunks = self._chunks()
        stripped = [line.strip() for line in lines]
        at = 0
        for chunk in chunks:
            places = range(at, len(stripped) - len(chunk) + 1)
            found = next((place for place in places if stripped[place : place + len(chunk)] == chunk), None)
            if found is None:
                return False
            at = found + len(chunk)
        return bool(chunks)

    def _chunks(self) -> list[list[str]]:
        """Return the blocks, parted where two lines side by side do not stand so in the expected text, either."""
        beside = set(pairwise(line.strip() for line in self._expected))
        chunks: list[list[str]] = []
        for block in self._blocks:
            chunks.append([block[0].strip()])
            for one, two in pairwise(line.strip() for line in block):
                if (one, two) in beside:
                    chunks[-1].append(two)
                else:
                    chunks.append([two])
        return chunks

    def _is_replaced(self, at: int) -> bool:
        """Tell whether expected line `at`, which is gone, stands where a run of new lines may end at a marker."""
        spans = changes([line.strip() for line in self._old], [line.strip() for line in self._expected])
        for span in spans:
            if not (span.b_start < span.b_end and at in (span.b_start - 1, span.b_end)):
                continue
            run = [line.strip() for line in self._expected[span.b_start : span.b_end]]
            edge = 0 if at < span.b_start else -1
            is_open = any(block[edge].strip() == run[edge] for block in self._blocks)
            spare = len(run) - (span.a_end - span.a_start)
            gone = self._expected[at].strip()
            has_word = any(map(str.isalnum, gone))
            if is_open and has_word and spare > 0 and any(fuzz.ratio(gone, line) >= _MIN_LIKENESS for line in run):
                return True
        return False


def _solid(text: str) -> list[str]:
    return [line.rstrip(" \t") for line in text.split("\n") if line.strip()]


def _shown(block: Sequence[str]) -> list[str]:
    return [line for line in block if line.strip() and not holds_placeholder(line)]


def _difference(old: Sequence[str], new: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """Return the lines that are written, and those that are gone, as an alignment has them."""
    written: Counter[str] = Counter()
    gone: Counter[str] = Counter()
    for span in changes(old, new):
        written.update(new[span.b_start : span.b_end])
        gone.update(old[span.a_start : span.a_end])
    return written, gone


def _only_line_gone(expected: Sequence[str], lines: Sequence[str]) -> int | None:
    """Return which expected line is the only thing that is missing; None where more differs."""
    if len(lines) != len(expected) - 1:
        return None
    at = next((at for at, line in enumerate(lines) if line != expected[at]), len(lines))
    return at if list(lines[at:]) == list(expected[at + 1 :]) else None
