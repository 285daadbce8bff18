"""Run the engine benchmark of one model, and make its rows, summary and tables."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.engine.roofline import Machine, Rows, count_work
from benchmarks.engine.workload import (
    BATCH_SIZES,
    MIDDLE_LENGTH,
    PREFILL_LENGTHS,
    VERIFY_CONTEXT,
    VERIFY_SIZES,
    Measure,
    Text,
    compute_advantage,
    compute_figures,
    compute_ttft,
)
from benchmarks.harness import Row, format_number, render_rows, render_table, say
from benchmarks.peers.contest import OURS, Agreement, Entrants, compare
from benchmarks.peers.protocol import Answer, Arrival, Contestant
from engine.config import ModelConfig

VERIFY_REPEATS = 3
WARM_UP_REQUESTS, WARM_UP_PROMPT, WARM_UP_TOKENS = 16, 64, 4

Samples = defaultdict[str, list[float]]
"""Figure -> its value in each round."""


@dataclass(slots=True)
class Outcome:
    """All that was measured of one model, by round."""

    config: ModelConfig
    machines: list[Machine] = field(default_factory=list)
    products: list[list[dict[str, Any]]] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)  # by contestant
    agreements: dict[str, dict[str, Agreement]] = field(default_factory=dict)  # by peer and measure
    verify_seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    peak_bytes: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def run_contest(entrants: Entrants, measures: Sequence[Measure], text: Text, rounds: int) -> Outcome:
    """Run `measures` in all entrants, `rounds` times."""
    outcome = Outcome(entrants.config, samples={one.name: defaultdict(list) for one in entrants.all})
    outcome.versions = {one.name: one.version for one in entrants.all}
    outcome.agreements = {peer.name: {} for peer in entrants.peers}
    verify_prompt = text.take(VERIFY_CONTEXT + 1)
    for one in entrants.all:
        say(f"warming up {one.version}")
        one.run(_make_warm_up(text).job("0"))
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: what the machine gives")
        _measure_machine(entrants.machine, outcome)
        for measure in measures:
            _run_in_turns(entrants, measure, number, outcome)
        say(f"round {number + 1} of {rounds}: verify passes")
        asked = {"prompt_ids": verify_prompt, "sizes": VERIFY_SIZES, "repeats": VERIFY_REPEATS}
        for size, seconds in entrants.ours.ask("verify", asked):
            outcome.verify_seconds[size] += seconds
    outcome.peak_bytes = {one.name: one.ask("peak_bytes") for one in entrants.all}
    return outcome


def _measure_machine(machine: Contestant, outcome: Outcome) -> None:
    found = machine.ask("measure")
    outcome.products.append(found["products"])
    outcome.machines.append(Machine(max(one["flops_s"] for one in found["products"]), found["read_bytes_s"]))


def _run_in_turns(entrants: Entrants, measure: Measure, number: int, outcome: Outcome) -> None:
    """Every other round goes the other way about."""
    able = [one for one in entrants.all if measure.abilities <= one.abilities]
    answers: dict[str, list[Answer]] = {}
    for one in able if number % 2 == 0 else reversed(able):
        answers[one.name] = one.run(measure.job(str(number)))
        found = compute_figures(measure.name, answers[one.name])
        if measure.name.startswith("prefill"):
            found |= {
                f"{measure.name.replace(' ', '_')}_ceiling_share": _compute_ceiling_share(
                    outcome, answers[one.name][0], measure
                )
            }
        for name, value in found.items():
            outcome.samples[one.name][name].append(value)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        say(f"round {number + 1}: {measure.name}: {one.name}: {shown}")
    if number == 0:
        for peer in able[1:]:
            outcome.agreements[peer.name][measure.name] = _compare_answers(
                entrants.ours, measure, answers[entrants.ours.name], answers[peer.name]
            )


def _compute_ceiling_share(outcome: Outcome, answer: Answer, measure: Measure) -> float:
    """Return the time of the layers' matrices at the ceiling, of the time to the first token."""
    num_tokens = len(measure.arrivals[0].prompt_ids)
    needed = count_work(outcome.config, [Rows(0, num_tokens)]).linear_flops / outcome.machines[-1].flops_s
    return needed / compute_ttft(answer)


def _compare_answers(ours: Contestant, measure: Measure, own: Sequence[Answer], other: Sequence[Answer]) -> Agreement:
    def margin(context: Sequence[int], first: int, second: int) -> float:
        found: float = ours.ask("margin", {"context": context, "first": first, "second": second})
        return found

    return compare(measure.arrivals, own, other, margin)


def _make_warm_up(text: Text) -> Measure:
    return Measure(
        "warm-up", tuple(Arrival(text.take(WARM_UP_PROMPT), WARM_UP_TOKENS) for _ in range(WARM_UP_REQUESTS))
    )


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


def make_figure_rows(outcome: Outcome) -> list[Row]:
    """Return a row for each figure: the median of every contestant, all its values, and how far ours is ahead.

    A peer whose output was another than ours gets no figure for that measure.
    """
    values = {name: _derive_figures(outcome, name) for name in outcome.samples}
    rows: list[Row] = []
    for figure in TITLES:
        if figure in values[OURS]:
            row: Row = {"figure": figure, "median": {}, "all": {}, "ours_ahead": {}}
            for name, found in values.items():
                if figure in found and _can_show(outcome, name, figure):
                    row["all"][name] = found[figure]
                    row["median"][name] = statistics.median(found[figure])
            for name, median in list(row["median"].items())[1:]:
                if (ahead := compute_advantage(figure, row["median"][OURS], median)) is not None:
                    row["ours_ahead"][name] = ahead
            rows.append(row)
    return rows


def make_pass_rows(outcome: Outcome) -> list[Row]:
    """Return the time of one forward pass of ours over each number of draft tokens, and its tokens a second."""
    medians = {size: statistics.median(found) for size, found in outcome.verify_seconds.items()}
    return [
        {"pass": f"verify {size}", "seconds": seconds, "tok_s": size / seconds} for size, seconds in medians.items()
    ]


def make_agreement_rows(outcome: Outcome) -> list[Row]:
    """Return how far each peer's output is ours, by measure."""
    return [
        {"peer": peer, "measure": measure, **{name: getattr(found, name) for name in Agreement.__dataclass_fields__}}
        for peer, by_measure in outcome.agreements.items()
        for measure, found in by_measure.items()
    ]


def summarise(model: str, outcome: Outcome) -> dict[str, Any]:
    """Return the keys of interfaces.md, the other figures, and the ratios to each peer."""
    rows = {row["figure"]: row for row in make_figure_rows(outcome)}
    own = {figure: row["median"][OURS] for figure, row in rows.items()}
    machine = take_medians(outcome.machines)
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
        "agreement": make_agreement_rows(outcome),
        "versions": outcome.versions,
    }


def _derive_figures(outcome: Outcome, name: str) -> dict[str, list[float]]:
    """Return a contestant's figures with those that are taken from two measures or from none."""
    found: dict[str, list[float]] = dict(outcome.samples[name])
    if "throughput_1_tok_s" in found and "throughput_16_tok_s" in found:
        pairs = zip(found["throughput_16_tok_s"], found["throughput_1_tok_s"], strict=True)
        found["throughput_ratio_16"] = [many / one for many, one in pairs]
    found["peak_gb"] = [outcome.peak_bytes[name] / 1e9]
    return found


def _can_show(outcome: Outcome, name: str, figure: str) -> bool:
    kind, *_ = figure.split("_")
    measures = {"throughput": "decode"}.get(kind, kind)
    return all(
        found.comparable
        for measure, found in outcome.agreements.get(name, {}).items()
        if measure.split(" ")[0] == measures
    )


def take_medians(machines: Sequence[Machine]) -> Machine:
    return Machine(
        statistics.median(machine.flops_s for machine in machines),
        statistics.median(machine.read_bytes_s for machine in machines),
    )


def render_tables(outcome: Outcome) -> str:
    machine = take_medians(outcome.machines)
    best = max(outcome.products[-1], key=lambda product: float(product["flops_s"]))
    packed = "prepacked" if best["prepacked"] else "plain"
    parts = [
        f"GEMM ceiling {machine.flops_s / 1e12:.2f} TFLOP/s ({best['shape']}, {best['num_rows']} rows, {packed}), "
        f"memory read at {machine.read_bytes_s / 1e9:.1f} GB/s",
        _render_figures(outcome),
        render_rows(
            [row | {"ms": 1e3 * row["seconds"]} for row in make_pass_rows(outcome)],
            {"one pass": "{pass}", "ms": "{ms:.1f}", "tok/s if all are confirmed": "{tok_s:n}"},
        ),
        *(_render_agreement(peer, found) for peer, found in outcome.agreements.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _render_figures(outcome: Outcome) -> str:
    peers = list(outcome.agreements)
    heads = ["", OURS, *(head for peer in peers for head in (peer, "ours ahead"))]
    lines = []
    for row in make_figure_rows(outcome):
        cells = [TITLES[row["figure"]], format_number(row["median"][OURS])]
        for peer in peers:
            ahead = row["ours_ahead"].get(peer)
            cells += [format_number(row["median"].get(peer)), "-" if ahead is None else f"{ahead:.2f} x"]
        lines.append(cells)
    return render_table(heads, lines)


def _render_agreement(peer: str, by_measure: Mapping[str, Agreement]) -> str:
    found = sum(by_measure.values(), Agreement())
    withheld = [measure for measure, one in by_measure.items() if not one.comparable]
    return (
        f"{peer}: {found.equal} of {found.outputs} outputs are ours to the end, {found.near_ties} part at a near-tie, "
        f"{found.parted_far} elsewhere, {found.first_tokens_wrong} at the first token; "
        f"{found.tokens_agreed} of {found.tokens_compared} tokens agree"
        + (f"; no speed is shown for: {', '.join(withheld)}" if withheld else "")
    )
