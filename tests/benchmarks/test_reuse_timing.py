"""Times are taken of second turns that find the first one and nothing else; rows, tables and summary hold them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.peers.protocol import Answer, Job
from benchmarks.reuse.edits import EditPair, count_edits, make_edit_pairs
from benchmarks.reuse.prompts import ALL, Books, Prompt, count_session
from benchmarks.reuse.report import make_edit_rows, make_time_rows, render_counts, render_edits, render_times, summarise
from benchmarks.reuse.times import ReuseOurs, measure_pairs, sample_turns, select_fitting
from engine.reuse import PromptSegment
from tests.engine.reuse.turns import random_ids, reusing_core
from tests.models import RealModel

MODES = ("exact", "fast", "turbo", "balanced")


class InProcess:
    """Our contestant without a process around it."""

    name = "hunk"

    def __init__(self) -> None:
        self.turns = ReuseOurs(reusing_core())

    def ask(self, operation: str, argument: Any = None) -> Any:
        return getattr(self.turns, operation)(argument)


class Peer:
    """Notes what it was asked."""

    name = "vllm"

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, job: Job) -> list[Answer]:
        self.jobs.append(job)
        return [Answer(0.0, (1,), (0.25,))]


def tiny_pair() -> EditPair:
    """A change of three tokens in the middle of 120, the same question; notes on it stand behind."""
    random = Random(5)
    before, changed, behind, asked = (PromptSegment(random_ids(random, count)) for count in (50, 20, 50, 4))
    ids = list(changed.token_ids)
    now = PromptSegment([*ids[:8], *((token + 1) % 48 for token in ids[8:11]), *ids[11:]])
    other = PromptSegment([(token + 1) % 48 for token in asked.token_ids])
    note = PromptSegment(random_ids(random, 9))
    return EditPair(
        "a",
        "made",
        (before, changed, behind, asked),
        (before, now, behind, other),
        (before, changed, behind, note, other),
    )


def test_what_is_timed_is_what_is_counted_and_every_time_starts_from_the_first_turn() -> None:
    pair, peer = tiny_pair(), Peer()
    (times,) = measure_pairs(InProcess(), [peer], [pair], MODES, rounds=2)  # type: ignore[arg-type,list-item]
    (counted,) = count_edits([pair], MODES)
    for mode in MODES:
        usage, turn = times.usage[mode], counted.by_mode[mode]
        assert (usage["cached"], usage["reused_approximate"]) == (turn.cached, turn.reused)
        assert (usage["recomputed"], usage["recomputed_by"]) == (turn.recomputed, turn.by_reason)
        assert len(times.seconds[mode]) == 2
        assert len(times.floors[mode]) == (0 if mode == "exact" else 2)
    assert counted.by_mode["exact"].recomputed == 66
    assert counted.by_mode["turbo"].recomputed == 3 + 4
    assert counted.by_mode["fast"].recomputed == 12 + 4
    assert counted.by_mode["balanced"].recomputed == 9 + 4
    assert len(times.seconds["cold"]) == 2 * len(MODES)
    assert [len(job.arrivals[0].prompt_ids) for job in peer.jobs] == [124, 124, 124, 124]
    assert len({job.salt for job in peer.jobs}) == 2
    assert times.seconds["vllm"] == [0.25, 0.25]

    rows = make_time_rows([times])
    assert {row["mode"] for row in rows} == {*MODES, "cold", "vllm", "vllm cold"}
    by_mode = {row["mode"]: row for row in rows}
    assert by_mode["exact"]["ttft_ratio_prefix"] == 1.0
    assert by_mode["fast"]["ttft_ratio_cold"] == by_mode["fast"]["ttft_seconds"] / by_mode["cold"]["ttft_seconds"]
    assert by_mode["fast"]["recomputed_tokens"] == 16


def test_the_summary_has_the_names_that_were_agreed() -> None:
    pair = tiny_pair()
    (times,) = measure_pairs(InProcess(), [], [pair], MODES, rounds=1)  # type: ignore[arg-type]
    session = [Prompt(list(pair.first), [1, 2], 0, compacted=False), Prompt(list(pair.second), [], 3, compacted=True)]
    counts = [
        count_session("s", session, mode, Books(), idle=ALL if mode == "fast" else 0) for mode in ("exact", "fast")
    ]
    edits = count_edits([pair], MODES)
    (turn,) = sample_turns({"s": session}, 1, 0)
    (session_times,) = measure_pairs(InProcess(), [], [turn], ("fast",), rounds=1)  # type: ignore[arg-type]
    quality = {"fast": {"insensitive": {"top1": 1.0}, "sensitive": {"stale_rate": 0.0}}, "noise": {}}
    found = summarise(counts, counts, edits, [times, session_times], quality)
    fast = found["fast"]
    assert fast["recomputed_vs_prefix"] == fast["recomputed_tokens"] / found["exact"]["recomputed_tokens"]
    assert {"recomputed_share", "ttft_ratio_cold", "ttft_ratio_prefix", "insensitive", "sensitive"} <= fast.keys()
    assert fast["edit"]["recomputed_tokens"] == 16
    assert fast["edit"]["recomputed_vs_prefix"] == 16 / 66
    assert {"ttft_ratio_cold", "ttft_ratio_prefix", "floor"} <= fast["edit"].keys()
    assert "noise" not in found
    assert fast["workspace"]["recomputed_share"] == fast["recomputed_share"]
    printed = "\n".join([render_counts("all", counts), render_edits(edits), render_times([times, session_times])])
    assert "balanced" in printed
    assert "compacted" in printed


def test_sampled_turns_have_the_turn_before_them_with_its_answer() -> None:
    prompts = [
        Prompt([PromptSegment([number])], [100 + number], 0, compacted=number in (3, 6)) for number in range(1, 9)
    ]
    found = sample_turns({"s": prompts}, 3, 7)
    assert sorted(pair.source for pair in found) == ["compacted", "compacted", "turn", "turn", "turn"]
    for pair in found:
        (now,) = pair.second[0].token_ids
        assert [list(segment.token_ids) for segment in pair.first] == [[now - 1], [99 + now]]
    assert found == sample_turns({"s": prompts}, 3, 7)


def test_what_does_not_fit_the_context_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    pair = tiny_pair()  # the longest prompt is the one with a note, 133 tokens
    assert select_fitting([pair], 134) == [pair]
    assert select_fitting([pair], 133) == []
    assert "134 tokens" in capsys.readouterr().err


def test_edits_are_in_the_middle_of_their_context(smollm2: RealModel, tmp_path: Path) -> None:
    pairs = make_edit_pairs(smollm2.tokenizer, 2, seed=2, cases=tmp_path / "none recorded")
    assert [pair.source for pair in pairs] == ["made", "made"]
    assert pairs[:1] == make_edit_pairs(smollm2.tokenizer, 1, seed=2, cases=tmp_path / "none recorded")
    for row in make_edit_rows(count_edits(pairs, ("exact", "fast", "turbo"))):
        assert 5_500 <= row["prompt_tokens"] <= 8_500
        if row["mode"] == "exact":
            assert 0.3 <= row["cached_tokens"] / row["prompt_tokens"] <= 0.7
        else:
            assert 0 < row["recomputed_vs_prefix"] < 0.3
