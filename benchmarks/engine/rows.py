"""The contest as rows and as a summary: medians over the rounds, and how far ours is ahead."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.engine.agreement import Agreement
from benchmarks.engine.contest import Outcome
from benchmarks.engine.contestants import OURS
from benchmarks.engine.figures import advantage
from benchmarks.engine.roofline import Machine, Rows, Work, work
from benchmarks.engine.workload import (
    BATCH_SIZES,
    DECODE_PROMPT,
    DECODE_TOKENS,
    MIDDLE_LENGTH,
    PREFILL_LENGTHS,
    VERIFY_CONTEXT,
)

Row = dict[str, Any]

TITLES = {
    **{
        figure: title
        for length in PREFILL_LENGTHS
        for figure, title in (
            (f"prefill_{length}_tok_s", f"prefill of {length:,} tokens, tok/s"),
            (f"prefill_{length}_ceiling_share", "  share of the GEMM ceiling"),
        )
    },
    **{f"decode_{size}_tok_s": f"plain decode, batch {size}, tok/s" for size in BATCH_SIZES},
    **{f"throughput_{size}_tok_s": f"requests at once: {size}, prefill too, tok/s" for size in BATCH_SIZES},
    "throughput_ratio_16": "  16 over 1",
    "load_ttft_p50_ms": "first token while 8 decode, p50, ms",
    "load_ttft_max_ms": "  max, ms",
    "load_gap_p50_ms": "gap in the 8 streams meanwhile, p50, ms",
    "load_gap_max_ms": "  longest, ms",
    "prefix_cold_ms": "first token, 4,032 tokens cold, ms",
    "prefix_cached_ms": "  with 4,000 of them cached, ms",
    "prefix_cached_share": "  cached over cold",
    "peak_gb": "peak memory, GB",
}
"""Every figure, in the order of the table."""


def figure_rows(outcome: Outcome) -> list[Row]:
    """A row for each figure: the median of every contestant, all its values, and how far ours is ahead.

    A peer whose output was another than ours gets no figure for that measure.
    """
    values = {name: _with_derived(outcome, name) for name in outcome.samples}
    rows: list[Row] = []
    for figure in TITLES:
        if figure in values[OURS]:
            row: Row = {"figure": figure, "median": {}, "all": {}, "ours_ahead": {}}
            for name, found in values.items():
                if figure in found and _may_be_shown(outcome, name, figure):
                    row["all"][name] = found[figure]
                    row["median"][name] = statistics.median(found[figure])
            for name, median in list(row["median"].items())[1:]:
                if (ahead := advantage(figure, row["median"][OURS], median)) is not None:
                    row["ours_ahead"][name] = ahead
            rows.append(row)
    return rows


def pass_rows(outcome: Outcome) -> list[Row]:
    """What one forward pass of ours has to do, the least time for that on this machine, and the time it took."""
    machine = typical(outcome.machines)
    medians = {name: statistics.median(found) for name, found in outcome.samples[OURS].items()}
    rows = []
    for length in PREFILL_LENGTHS:
        if rate := medians.get(f"prefill_{length}_tok_s"):
            rows.append(_pass(f"prefill {length}", work(outcome.config, [Rows(0, length)]), length / rate, machine))
    middle = DECODE_PROMPT + DECODE_TOKENS // 2
    for size in BATCH_SIZES:
        if rate := medians.get(f"decode_{size}_tok_s"):
            rows.append(_pass(f"decode {size}", work(outcome.config, [Rows(middle, 1)] * size), size / rate, machine))
    for size, seconds in outcome.verify_seconds.items():
        done = work(outcome.config, [Rows(VERIFY_CONTEXT, size, num_logits=size)])
        rows.append(_pass(f"verify {size}", done, statistics.median(seconds), machine))
    return rows


def agreement_rows(outcome: Outcome) -> list[Row]:
    """How far each peer's output is ours, by measure."""
    return [
        {"peer": peer, "measure": measure, **{name: getattr(found, name) for name in Agreement.__dataclass_fields__}}
        for peer, by_measure in outcome.agreements.items()
        for measure, found in by_measure.items()
    ]


def summary(model: str, outcome: Outcome) -> dict[str, Any]:
    """The keys of interfaces.md, the other figures, and the ratios to each peer."""
    rows = {row["figure"]: row for row in figure_rows(outcome)}
    own = {figure: row["median"][OURS] for figure, row in rows.items()}
    machine = typical(outcome.machines)
    return {
        "model": model,
        "prefill_tok_s": own.get(f"prefill_{MIDDLE_LENGTH}_tok_s"),
        "prefill_ceiling_share": own.get(f"prefill_{MIDDLE_LENGTH}_ceiling_share"),
        "decode_tok_s": own.get("decode_1_tok_s"),
        "gemm_ceiling_tflop_s": machine.flops_s / 1e12,
        "read_gb_s": machine.read_bytes_s / 1e9,
        "figures": own,
        "ours_ahead": {
            peer: {figure: row["ours_ahead"][peer] for figure, row in rows.items() if peer in row["ours_ahead"]}
            for peer in outcome.agreements
        },
        "agreement": agreement_rows(outcome),
        "versions": outcome.versions,
    }


def _with_derived(outcome: Outcome, name: str) -> dict[str, list[float]]:
    """A contestant's figures with those that are taken from two measures or from none."""
    found: dict[str, list[float]] = dict(outcome.samples[name])
    if "throughput_1_tok_s" in found and "throughput_16_tok_s" in found:
        pairs = zip(found["throughput_16_tok_s"], found["throughput_1_tok_s"], strict=True)
        found["throughput_ratio_16"] = [many / one for many, one in pairs]
    found["peak_gb"] = [outcome.peak_bytes[name] / 1e9]
    return found


def _may_be_shown(outcome: Outcome, name: str, figure: str) -> bool:
    kind, *_ = figure.split("_")
    measures = {"throughput": "decode"}.get(kind, kind)
    return all(
        found.comparable
        for measure, found in outcome.agreements.get(name, {}).items()
        if measure.split(" ")[0] == measures
    )


def typical(machines: Sequence[Machine]) -> Machine:
    """The medians over the rounds."""
    return Machine(
        statistics.median(machine.flops_s for machine in machines),
        statistics.median(machine.read_bytes_s for machine in machines),
    )


def _pass(name: str, done: Work, seconds: float, machine: Machine) -> Row:
    least = machine.least_seconds(done)
    return {
        "pass": name,
        "seconds": seconds,
        "flops": done.flops,
        "linear_flops": done.linear_flops,
        "attention_flops": done.attention_flops,
        "lm_head_flops": done.lm_head_flops,
        "bytes": done.num_bytes,
        "kv_bytes": done.kv_bytes,
        "least_seconds": least,
        "roofline_share": least / seconds,
    }
