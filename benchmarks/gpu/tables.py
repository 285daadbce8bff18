"""What was counted and measured of one model, as tables for people, which docs/kernels.md takes, and as rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from benchmarks.gpu.counted import FASTEST_CLAIM, MOST_DRAFTED, PASSES, CountedPass, bounds, copy_tok_s, decode_s
from benchmarks.gpu.edits import Edit
from benchmarks.gpu.measuring import Copied, Found
from benchmarks.ops.ceilings import Ceilings
from benchmarks.ops.tables import digits
from engine.config import ModelConfig

CLAIMS = (
    f"Published by others, who do not say how they measured: Morph {FASTEST_CLAIM:,} tok/s, Relace about 10,000, "
    "Cursor about 1,000 (70B), Kortix FastApply about 340 (1.5B) and 150 (7B)"
)


def bound_lines(config: ModelConfig, ceilings: Ceilings, found: Found | None = None) -> Iterator[str]:
    """The best that the card allows, what was measured, and the share of the one that the other is."""
    yield "| | at best | measured | share |"
    yield "| --- | --: | --: | --: |"
    for name, bound in bounds(config, ceilings).items():
        values = [] if found is None else found.figures.get(name, [])
        middle = statistics.median(values) if values else None
        cells = [name, digits(bound), "" if middle is None else digits(middle), _share(name, bound, middle)]
        yield f"| {' | '.join(cells)} |"


def claim_lines(config: ModelConfig, ceilings: Ceilings) -> Iterator[str]:
    """How many tokens each pass has to give for the fastest claim, at least."""
    parts = [f"{ceil(FASTEST_CLAIM * decode_s(config, num, ceilings))} of {num} rows" for num in PASSES if num > 1]
    yield f"For {FASTEST_CLAIM:,} tok/s a pass has to give at least {', or '.join(parts)}."


def acceptance_lines(
    config: ModelConfig, ceilings: Ceilings, edits: Sequence[Edit], patterns: Sequence[Sequence[CountedPass]]
) -> Iterator[str]:
    """Each recorded edit: its passes where up to MOST_DRAFTED tokens are drafted, and the best rate on the card."""
    yield f"| recorded edit, up to {MOST_DRAFTED} drafted | merge | tokens | passes | tokens a pass | at best, tok/s |"
    yield "| --- | --- | --: | --: | --: | --: |"
    for edit, passes in zip(edits, patterns, strict=True):
        rate = copy_tok_s(config, len(edit.prompt), passes, ceilings)
        mean = len(edit.output) / len(passes)
        cells = [edit.name, edit.group, f"{len(edit.output):,}", f"{len(passes)}", digits(mean), digits(rate)]
        yield f"| {' | '.join(cells)} |"


def copied_lines(found: Found) -> Iterator[str]:
    """Each edit as it was written, and all of them together."""
    yield "| recorded edit | merge | tokens | passes | tokens a pass | tok/s |"
    yield "| --- | --- | --: | --: | --: | --: |"
    for each in found.copied:
        rate, mean = statistics.median(each.tok_s), each.num_tokens / len(each.passes)
        cells = [each.name, each.group, f"{each.num_tokens:,}", f"{len(each.passes)}", digits(mean), digits(rate)]
        yield f"| {' | '.join(cells)} |"
    if found.copied:
        yield ""
        yield f"All together: {digits(total_tok_s(found.copied))} tok/s. {CLAIMS}."


def total_tok_s(copied: Sequence[Copied]) -> float:
    """All tokens by all seconds, each edit's the median of its runs."""
    seconds = sum(each.num_tokens / statistics.median(each.tok_s) for each in copied)
    return sum(each.num_tokens for each in copied) / seconds


def rows(name: str, config: ModelConfig, ceilings: Ceilings, found: Found | None) -> list[dict[str, Any]]:
    """For programs."""
    figures = {} if found is None else found.figures
    own: list[dict[str, Any]] = [
        {"model": name, "figure": figure, "bound": bound, "values": figures.get(figure, [])}
        for figure, bound in bounds(config, ceilings).items()
    ]
    return own + [
        {"model": name, "edit": each.name, "tokens": each.num_tokens, "passes": each.passes, "tok_s": each.tok_s}
        for each in ([] if found is None else found.copied)
    ]


def _share(name: str, bound: float, middle: float | None) -> str:
    if middle is None:
        return ""
    return f"{middle / bound if name.endswith('tok/s') else bound / middle:.0%}"
