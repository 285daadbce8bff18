"""`python -m benchmarks.scale`: the goals' figures are of the rows that they name; sessions are seeded."""

from __future__ import annotations

from argparse import Namespace
from itertools import combinations

from benchmarks.scale.__main__ import summarise
from benchmarks.scale.replicas import make_sessions
from tests.benchmarks.test_snippets import stock_pairs
from tests.models import RealModel


def row_of(number: int, route: str, p50: float, lost: int = 0) -> dict[str, object]:
    times = {"ttft_p50": p50, "ttft_p90": 2 * p50}
    return {
        "part": "replicas", "replicas": number, "route": route, "hit_share": 0.9, **times, "lost": lost, "foreign": 0
    }  # fmt: skip


def test_ratios_are_those_of_the_most_replicas() -> None:
    rows = [row_of(2, "any", 1.0), row_of(2, "session", 1.0), row_of(4, "any", 4.0, 1), row_of(4, "session", 1.0)]
    tier = [{"part": "tier", "link": "loopback", "ratio": 0.04}, {"part": "tier", "link": "1 Gbit/s", "ratio": 1.02}]
    found = summarise([*rows, *tier])
    assert (found["ttft_p50_ratio"], found["ttft_p90_ratio"], found["lost"]) == (0.25, 0.25, 1)
    assert (found["remote_vs_recompute"], found["worst_link"]) == (0.04, 1.02)
    assert set(summarise([]).values()) == {None}


def test_sessions_are_seeded_and_each_has_files_of_its_own(smollm2: RealModel) -> None:
    options = Namespace(seed=3, sessions=3, session_tokens=300, turns=2)
    pairs = stock_pairs()
    sessions = make_sessions(pairs, options, smollm2.tokenizer)
    assert sessions == make_sessions(pairs, options, smollm2.tokenizer)
    assert sessions != make_sessions(pairs, Namespace(**vars(options) | {"seed": 4}), smollm2.tokenizer)
    assert [(len(each.prompt), len(each.turns)) for each in sessions] == [(300, 2)] * 3
    for one, other in combinations(sessions, 2):
        assert one.prompt[: one.num_shared] == other.prompt[: one.num_shared]
        assert one.prompt != other.prompt
