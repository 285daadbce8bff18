"""Is time linear in the size of the file and the number of hunks? 1 MB with 1,000 hunks, and half and twice that."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.rendering import lazy_snippet, search_replace, udiff
from editor.formats import parse
from editor.merge import merge
from editor.types import FormatName, Merged

_LINES = 38_000
_HUNKS = 1_000
_RENDER: Mapping[FormatName, Callable[[str, str], str | None]] = {
    "search_replace": search_replace,
    "udiff": lambda before, after: udiff(before, after, "big.py"),
    "lazy": lambda before, after: lazy_snippet(before, after, "# ... existing code ..."),
}


def measure_scale() -> dict[str, Any]:
    """Return milliseconds of parse + merge at 1/2, 1 and 2 times 1 MB with 1,000 hunks, by format."""
    out: dict[str, Any] = {}
    for name, render in _RENDER.items():
        out[name] = [_measure(name, render, factor) for factor in (0.5, 1.0, 2.0)]
    return out


def _measure(name: FormatName, render: Callable[[str, str], str | None], factor: float) -> dict[str, Any]:
    before, after = _texts(int(_LINES * factor), int(_HUNKS * factor))
    edit = render(before, after)
    assert edit is not None
    times = []
    for _ in range(3):
        started = time.perf_counter()
        outcome = merge(before, parse(edit, name), "python")
        times.append((time.perf_counter() - started) * 1e3)
    right = isinstance(outcome, Merged) and outcome.text == after
    result = "exact" if right else "wrong" if isinstance(outcome, Merged) else "refused"
    return {
        "bytes": len(before),
        "hunks": int(_HUNKS * factor),
        "ms": round(statistics.median(times), 1),
        "result": result,
    }


def _texts(num_lines: int, num_hunks: int) -> tuple[str, str]:
    """A Python file of small functions, repetitive as real ones are, and the same with some lines changed."""
    lines = []
    for number in range(num_lines // 5):
        lines += [f"def function_{number}(value, other):", "    if value is None:", "        return other"]
        lines += [f"    return value + {number} * other  # plain arithmetic", ""]
    every = len(lines) // num_hunks
    changed = [f"{line}  # changed" if at % every == 0 and line.strip() else line for at, line in enumerate(lines)]
    return "\n".join(lines), "\n".join(changed)
