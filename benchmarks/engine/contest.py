"""One model's contest: everything is run in turns, round after round, so that the machine's drift meets all alike."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.engine.agreement import Agreement, compare
from benchmarks.engine.contestants import Entrants
from benchmarks.engine.figures import figures, time_to_first
from benchmarks.engine.roofline import Machine, Rows, work
from benchmarks.engine.workload import VERIFY_CONTEXT, VERIFY_SIZES, Measure, Text
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.jobs import Answer, Arrival
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


def hold(entrants: Entrants, measures: Sequence[Measure], text: Text, rounds: int) -> Outcome:
    """Run `measures` in all entrants, `rounds` times."""
    outcome = Outcome(entrants.config, samples={one.name: defaultdict(list) for one in entrants.all})
    outcome.versions = {one.name: one.version for one in entrants.all}
    outcome.agreements = {peer.name: {} for peer in entrants.peers}
    verify_prompt = text.take(VERIFY_CONTEXT + 1)
    for one in entrants.all:
        _say(f"warming up {one.version}")
        one.run(_warm_up(text).job("0"))
    for number in range(rounds):
        _say(f"round {number + 1} of {rounds}: what the machine gives")
        _measure_machine(entrants.machine, outcome)
        for measure in measures:
            _run_in_turns(entrants, measure, number, outcome)
        _say(f"round {number + 1} of {rounds}: verify passes")
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
        found = figures(measure.name, answers[one.name])
        if measure.name.startswith("prefill"):
            found |= {f"{measure.name.replace(' ', '_')}_ceiling_share": _share(outcome, answers[one.name][0], measure)}
        for name, value in found.items():
            outcome.samples[one.name][name].append(value)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        _say(f"round {number + 1}: {measure.name}: {one.name}: {shown}")
    if number == 0:
        for peer in able[1:]:
            outcome.agreements[peer.name][measure.name] = _agreement(
                entrants.ours, measure, answers[entrants.ours.name], answers[peer.name]
            )


def _share(outcome: Outcome, answer: Answer, measure: Measure) -> float:
    """The time of the layers' matrices at the ceiling, of the time to the first token."""
    num_tokens = len(measure.arrivals[0].prompt_ids)
    needed = work(outcome.config, [Rows(0, num_tokens)]).linear_flops / outcome.machines[-1].flops_s
    return needed / time_to_first(answer)


def _agreement(ours: Contestant, measure: Measure, own: Sequence[Answer], other: Sequence[Answer]) -> Agreement:
    def margin(context: Sequence[int], first: int, second: int) -> float:
        found: float = ours.ask("margin", {"context": context, "first": first, "second": second})
        return found

    return compare(measure.arrivals, own, other, margin)


def _warm_up(text: Text) -> Measure:
    return Measure(
        "warm-up", tuple(Arrival(text.take(WARM_UP_PROMPT), WARM_UP_TOKENS) for _ in range(WARM_UP_REQUESTS))
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
