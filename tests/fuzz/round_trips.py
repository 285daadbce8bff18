"""Round trips: the difference of two texts in a format, applied to the first, must give the second.

The texts are made up of tricky lines, or cut from real files. What says where it belongs (a whole file, line ranges)
must come back equal. Diffs, patches, blocks, replacements and lazy snippets may also be refused, where the new lines
stand already next to the old ones, or a line looks like a marker; they are never to be merged into anything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Any

from benchmarks import edit_formats as rendering
from benchmarks.cases import AnyCase, Case
from editor import codec
from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.merge import merge
from editor.placeholders import holds_placeholder
from editor.required_lines import refuse_stand_in
from editor.types import AlreadyApplied, FormatName, Merged

# Lines that repeat, that look like an edit's own syntax, and that a careless program breaks lines at or strips.
TRICKY = (
    *("", "", "", "}", "}", "    }", "    return x", "    return x", "pass", "x = 1", "x = 1  ", "\tx = 1"),
    *("def f(a):", "    def f(a):", "class A:", "if a {", "else:", "    # note", "// note", "/* note */", "- item"),
    *("<<<<<<< HEAD", "=======", ">>>>>>> main", "<<<<<<< SEARCH", ">>>>>>> REPLACE", "------- SEARCH"),
    *("--- a/x.py", "+++ b/x.py", "@@ -1,2 +1,2 @@", "@@", "-x", "+x", " x", "\\ No newline at end of file"),
    *("diff --git a/x b/x", "*** Begin Patch", "*** End Patch", "*** End of File", "*** Update File: x", "1 | x = 1"),
    *("...", "    ...", "// ... existing code ...", "# rest of the file unchanged", "```", "```python", "~~~"),
    *(
        '{"old_text": "x", "new_text": "y"}',
        "lines 1-2:",
        "x = “a”",
        "x = 'a'",
        "a\u00a0b",
        "a b",
        "na\u00efve",
        "nai\u0308ve",
    ),
    *(
        "page\x0cbreak",
        "a\u2028b",
        "a\x85b",
        "\x0b",
        "\U0001f600",
        "\u200b",
        "a\rb",
        "&lt;b&gt; &amp;",
        "<b> &",
        "x\ufeffy",
    ),
    "x" * 300,
)
_MAX_LINES = 40
_MAX_SLICE = 90


def make_pair(rng: Random, files: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return two different texts; `files` are the lines of real files to cut from (there may be none)."""
    while True:
        real = bool(files) and rng.random() < 0.5
        before = (
            _cut_lines(rng, rng.choice(files)) if real else _draw_lines(rng, rng.choice((0, 1, 2, 5, 12, _MAX_LINES)))
        )
        after = list(before)
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            _change(rng, after, before if real and before and rng.random() < 0.5 else TRICKY)
        newline = "\n" if rng.random() < 0.85 else ""
        old = "\n".join(before) + newline if before else ""
        new = "\n".join(after) + (newline if rng.random() < 0.95 else "\n") if after else ""
        if old != new:
            return old, new


def _draw_lines(rng: Random, most: int) -> list[str]:
    return [rng.choice(TRICKY) for _ in range(rng.randint(0, most))]


def _cut_lines(rng: Random, lines: Sequence[str]) -> list[str]:
    start = rng.randrange(max(1, len(lines)))
    return list(lines[start : start + rng.randint(1, _MAX_SLICE)])


def _change(rng: Random, lines: list[str], words: Sequence[str]) -> None:
    """Change the lines in place: insert, delete, replace, copy, move, indent, or alter one character."""
    start = rng.randint(0, len(lines))
    end = min(len(lines), start + rng.choice((0, 1, 1, 2, 4)))
    kind = rng.randrange(6)
    if kind == 0:
        lines[start:start] = [rng.choice(words) for _ in range(rng.randint(1, 4))]
    elif kind == 1:
        del lines[start:end]
    elif kind == 2:
        lines[start:end] = [rng.choice(words) for _ in range(rng.randint(1, 3))]
    elif kind == 3:
        moved = lines[start:end]
        if rng.random() < 0.5:
            del lines[start:end]
        at = rng.randint(0, len(lines))
        lines[at:at] = moved
    elif kind == 4:
        lines[start:end] = ["    " + line if line else line for line in lines[start:end]]
    elif start < len(lines) and lines[start]:
        at = rng.randrange(len(lines[start]))
        lines[start] = lines[start][:at] + rng.choice("aZ0 _(") + lines[start][at + 1 :]


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


def _render_lazy(before: str, after: str) -> str | None:
    """Write a lazy snippet, unless a line of the text itself is a placeholder or a fence, or ends are blank.

    Blank lines at the very beginning or end of a snippet are layout; it cannot say that they are to be added. And it
    shows nothing of a deletion whose context stands in the old text as it will in the new one.
    """
    if not rendering.has_same_ends(before, after) or _has_blank_end(before) or _has_blank_end(after):
        return None
    if _has_unshown_deletion(before.split("\n"), after.split("\n")):
        return None
    if not after or _has_placeholder(after) or "```" in after or "~~~" in after:
        return None
    return rendering.render_lazy(before, after, _MARKER)


def _render_whole(before: str, after: str) -> str | None:
    """Write the file, unless it holds placeholders or code fences: it may be refused for them."""
    return (
        None if _has_placeholder(after) or "```" in after or "~~~" in after else rendering.render_whole(before, after)
    )


def _render_lines(before: str, after: str) -> str | None:
    """Write the changes by their line numbers, with the same exception."""
    return None if _has_placeholder(after) else rendering.render_line_ranges(before, after)


def _has_unshown_deletion(a: list[str], b: list[str]) -> bool:
    """Return whether two lines of context on both sides of a deletion stand so, blank ends aside, in the old text."""
    old = "\n".join(["", *a, ""])
    for span in rendering.diff_texts(a, b):
        if span.b_start == span.b_end:
            context = "\n".join(b[max(0, span.b_start - 2) : span.b_end + 2]).strip("\n")
            if f"\n{context}\n" in old:
                return True
    return False


def _strip_line_ends(text: str) -> list[str]:
    """Return the lines as far as a lazy snippet can say them: of a line that stands, the file's own spaces are kept."""
    return [line.rstrip() for line in text.split("\n")]


def _has_blank_end(text: str) -> bool:
    lines = text.removesuffix("\n").split("\n")
    return bool(text) and not (lines[0].strip() and lines[-1].strip())


def _has_placeholder(text: str) -> bool:
    return any(holds_placeholder(line) or line.strip() == "..." for line in text.split("\n"))


WAYS: Mapping[FormatName, Way] = {
    "udiff": Way(lambda before, after: rendering.render_udiff(before, after, _PATH), False),
    "v4a": Way(lambda before, after: rendering.render_v4a(before, after, _PATH), False),
    "whole": Way(_render_whole, True),
    "replace": Way(rendering.render_replace, False),
    "lines": Way(_render_lines, True),
    "search_replace": Way(rendering.render_search_replace, False),
    "lazy": Way(_render_lazy, False),
}


def run_round_trip(name: FormatName, before: str, after: str) -> str | Failure:
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
        right = outcome.text == after or (name == "lazy" and _strip_line_ends(outcome.text) == _strip_line_ends(after))
        return "exact" if right else Failure(name, before, after, edit, outcome.text)
    if way.complete and refuse_stand_in(before, after, parsed) is None:
        return Failure(name, before, after, edit, f"refused: {outcome}")
    return "already" if isinstance(outcome, AlreadyApplied) else "refused"


def run_round_trips(num_cases: int, seed: int, cases: Sequence[AnyCase]) -> tuple[dict[str, Any], list[Failure]]:
    """Make `num_cases` round trips, the formats in turn on each pair; return the counts by format and the failures."""
    texts = (codec.decode(case.original.encode()).text for case in cases if isinstance(case, Case))
    files = [text.split("\n") for text in texts if text]
    counts: dict[str, Counter[str]] = {name: Counter() for name in WAYS}
    failures: list[Failure] = []
    for name, (before, after) in _draw_trips(Random(seed), files, num_cases):
        result = run_round_trip(name, before, after)
        if isinstance(result, Failure):
            failures.append(result)
            result = "failed"
        counts[name][result] += 1
    return {name: {"cases": found.total(), **found} for name, found in counts.items()}, failures


def _draw_trips(
    rng: Random, files: Sequence[Sequence[str]], num_cases: int
) -> Iterator[tuple[FormatName, tuple[str, str]]]:
    texts = ("", "")
    for number, name in zip(range(num_cases), cycle(WAYS), strict=False):
        if number % len(WAYS) == 0:
            texts = make_pair(rng, files)
        yield name, texts
