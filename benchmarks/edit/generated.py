"""Random pairs of texts, before and after an edit: made up of tricky lines, or cut from real files."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

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


def pair(rng: Random, files: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return two different texts; `files` are the lines of real files to cut from (there may be none)."""
    while True:
        real = bool(files) and rng.random() < 0.5
        before = _slice(rng, rng.choice(files)) if real else _tricky(rng, rng.choice((0, 1, 2, 5, 12, _MAX_LINES)))
        after = list(before)
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            _change(rng, after, before if real and before and rng.random() < 0.5 else TRICKY)
        newline = "\n" if rng.random() < 0.85 else ""
        old = "\n".join(before) + newline if before else ""
        new = "\n".join(after) + (newline if rng.random() < 0.95 else "\n") if after else ""
        if old != new:
            return old, new


def _tricky(rng: Random, most: int) -> list[str]:
    return [rng.choice(TRICKY) for _ in range(rng.randint(0, most))]


def _slice(rng: Random, lines: Sequence[str]) -> list[str]:
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
