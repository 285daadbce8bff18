"""Inputs that were slow or may be slow, at the sizes that the time limits are promised for.

    explicit formats    files up to 1 MB, edits up to 200 kB
    lazy snippets       files of 400 kB and of 1 MB, edits up to 200 kB

`make_slow_inputs(scale=0.5)` gives the same inputs at half of these sizes: what grows by more than twice from there
is not linear. All texts come from formulas and from one seeded generator, so that every call gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.slow_inputs.explicit import make_many, make_misses, make_real_files, make_repetition
from benchmarks.slow_inputs.odd import make_lazy_snippets, make_odd_bytes, make_odd_edits
from benchmarks.slow_inputs.targets import Sizes, SlowInput

__all__ = ["SlowInput", "make_slow_inputs"]

FILE_BYTES = 1_000_000
LAZY_FILE_BYTES = 400_000
EDIT_BYTES = 200_000
FAMILIES = (
    *(make_real_files, make_misses, make_repetition, make_many),
    *(make_odd_edits, make_odd_bytes, make_lazy_snippets),
)


def make_slow_inputs(scale: float = 1.0) -> Iterator[SlowInput]:
    """Yield every input at `scale` times the promised sizes."""
    sizes = Sizes(int(FILE_BYTES * scale), int(LAZY_FILE_BYTES * scale), int(EDIT_BYTES * scale))
    for family in FAMILIES:
        yield from family(sizes)
