"""Two texts, their difference written in a format, and that applied to the first: it must give the second.

What says where it belongs (a whole file, line ranges) must come back equal. Diffs, patches, blocks, replacements and
lazy snippets may also be refused, where the new lines stand already beside the old ones, or a line looks like a marker;
they are never to be merged into anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Any

from benchmarks import rendering
from benchmarks.cases import AnyCase, Case
from benchmarks.edit.generated import pair
from editor import codec
from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.merge import merge
from editor.placeholders import holds_placeholder
from editor.required_lines import refuse_stand_in
from editor.types import AlreadyApplied, FormatName, Merged

_PATH = "dir/file.py"
_MARKER = "# ... existing code ..."


@dataclass(frozen=True, slots=True)
class Way:
    """How a format writes a difference; `complete` says that it leaves nothing open."""

    render: Callable[[str, str], str | None]
    complete: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A round trip that did not come back, with all that is needed to see why."""

    format: FormatName
    before: str
    after: str
    edit: str
    got: str


def _lazy(before: str, after: str) -> str | None:
    """Write a lazy snippet, unless a line of the text itself is a placeholder or a fence, or ends are blank.

    Blank lines at the very beginning or end of a snippet are layout; it cannot say that they are to be added. And it
    shows nothing of a deletion whose context stands in the old text as it will in the new one.
    """
    if not rendering.ends_alike(before, after) or _has_blank_end(before) or _has_blank_end(after):
        return None
    if _has_unshown_deletion(before.split("\n"), after.split("\n")):
        return None
    if not after or _has_placeholder(after) or "```" in after or "~~~" in after:
        return None
    return rendering.lazy_snippet(before, after, _MARKER)


def _whole(before: str, after: str) -> str | None:
    """Write the file, unless it holds placeholders or code fences: it may be refused for them."""
    return None if _has_placeholder(after) or "```" in after or "~~~" in after else rendering.whole(before, after)


def _lines(before: str, after: str) -> str | None:
    """Write the changes by their line numbers, with the same exception."""
    return None if _has_placeholder(after) else rendering.line_ranges(before, after)


def _has_unshown_deletion(a: list[str], b: list[str]) -> bool:
    """Tell whether two lines of context on both sides of a deletion stand so, blank ends aside, in the old text."""
    old = "\n".join(["", *a, ""])
    for span in rendering.changes(a, b):
        if span.b_start == span.b_end:
            context = "\n".join(b[max(0, span.b_start - 2) : span.b_end + 2]).strip("\n")
            if f"\n{context}\n" in old:
                return True
    return False


def _no_spaces_at_ends(text: str) -> list[str]:
    """Return the lines as far as a lazy snippet can say them: of a line that stands, the file's own spaces are kept."""
    return [line.rstrip() for line in text.split("\n")]


def _has_blank_end(text: str) -> bool:
    lines = text.removesuffix("\n").split("\n")
    return bool(text) and not (lines[0].strip() and lines[-1].strip())


def _has_placeholder(text: str) -> bool:
    return any(holds_placeholder(line) or line.strip() == "..." for line in text.split("\n"))


WAYS: Mapping[FormatName, Way] = {
    "udiff": Way(lambda before, after: rendering.udiff(before, after, _PATH), False),
    "v4a": Way(lambda before, after: rendering.v4a(before, after, _PATH), False),
    "whole": Way(_whole, True),
    "replace": Way(rendering.replace, False),
    "lines": Way(_lines, True),
    "search_replace": Way(rendering.search_replace, False),
    "lazy": Way(_lazy, False),
}


def round_trip(name: FormatName, before: str, after: str) -> str | Failure:
    """Return "exact", "refused", "already" (taken for applied before), "unsayable", or the failure."""
    way = WAYS[name]
    edit = way.render(before, after)
    if edit is None:
        return "unsayable"
    try:
        parsed = parse(edit, name)
        outcome = merge(before, parsed, "python")
    except EditSyntaxError as error:
        return Failure(name, before, after, edit, f"refused: {error}") if way.complete else "refused"
    except Exception as error:  # noqa: BLE001 (a crash is a failure like any other, and the run goes on)
        return Failure(name, before, after, edit, f"crashed: {error!r}")
    if isinstance(outcome, Merged):
        right = outcome.text == after or (
            name == "lazy" and _no_spaces_at_ends(outcome.text) == _no_spaces_at_ends(after)
        )
        return "exact" if right else Failure(name, before, after, edit, outcome.text)
    if way.complete and refuse_stand_in(before, after, parsed) is None:
        return Failure(name, before, after, edit, f"refused: {outcome}")
    return "already" if isinstance(outcome, AlreadyApplied) else "refused"


def run(num_cases: int, seed: int, cases: Sequence[AnyCase]) -> tuple[dict[str, Any], list[Failure]]:
    """Make `num_cases` round trips, the formats in turn on each pair; return the counts by format and the failures."""
    texts = (codec.decode(case.original.encode()).text for case in cases if isinstance(case, Case))
    files = [text.split("\n") for text in texts if text]
    counts: dict[str, Counter[str]] = {name: Counter() for name in WAYS}
    failures: list[Failure] = []
    for name, (before, after) in _trips(Random(seed), files, num_cases):
        result = round_trip(name, before, after)
        if isinstance(result, Failure):
            failures.append(result)
            result = "failed"
        counts[name][result] += 1
    return {name: {"cases": found.total(), **found} for name, found in counts.items()}, failures


def _trips(rng: Random, files: Sequence[Sequence[str]], num_cases: int) -> Iterator[tuple[FormatName, tuple[str, str]]]:
    texts = ("", "")
    for number, name in zip(range(num_cases), cycle(WAYS), strict=False):
        if number % len(WAYS) == 0:
            texts = pair(rng, files)
        yield name, texts
