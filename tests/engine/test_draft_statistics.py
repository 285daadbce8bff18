"""What a request's drafts came to is counted by source, as far as they were put before the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from engine.engine import Engine
from engine.types import Draft, DraftRun, GenerationRequest, SourceUsage
from tests.engine.cores import PROMPT, alone, drain, make_core, run_one, same, tiny_model
from tests.engine.drafters import AlwaysWrong, Oracle, RandomDraft
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_decoder, tiny_limits

REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=60)


@dataclass
class Parted:
    """Drafts what the model writes, but for the last `num_wrong` tokens; the first `num_merge` are from "merge"."""

    target: Sequence[int]
    num_right: int
    num_wrong: int
    num_merge: int

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        if output_ids:
            return Draft((), ())
        ahead = self.target[: self.num_right + self.num_wrong]
        ids = [*ahead[: self.num_right], *((each + 1) % VOCAB_SIZE for each in ahead[self.num_right :])]
        runs = DraftRun("merge", self.num_merge, 1e-4), DraftRun("update", len(ids) - self.num_merge, 1e-4)
        return Draft(ids, runs)


def test_each_source_has_what_was_drafted_and_accepted_of_it() -> None:
    target = alone(tiny_model(), REQUEST)
    core = make_core()
    result = run_one(core, REQUEST, Parted(target.token_ids, 20, 7, num_merge=15))
    assert same(result, target)
    assert result.usage.by_source == {"merge": SourceUsage(15, 15), "update": SourceUsage(12, 5)}
    assert (result.usage.drafted, result.usage.accepted) == (27, 20)
    run_one(core, REQUEST, Parted(target.token_ids, 5, 3, num_merge=8))
    assert core.drafted == {"merge": SourceUsage(23, 20), "update": SourceUsage(12, 5)}, "of all requests"


def test_what_a_cut_draft_left_out_is_not_counted() -> None:
    target = alone(tiny_model(), REQUEST)
    core = make_core(max_batched_tokens=len(PROMPT) + 12, max_drafted=0, max_num_seqs=4)
    result = run_one(core, REQUEST, Parted(target.token_ids, 10, 40, num_merge=10))
    assert same(result, target)
    assert result.usage.by_source == {"merge": SourceUsage(10, 10), "update": SourceUsage(2, 0)}


@pytest.mark.parametrize("stop_at", [3, 12])
def test_tokens_behind_the_end_of_the_output_are_not_accepted(stop_at: int) -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    request = replace(REQUEST, stop_ids=frozenset({target[stop_at]}))
    num_written = target.index(target[stop_at]) + 1
    usage = run_one(make_core(), request, Parted(target, 20, 5, num_merge=20)).usage
    assert usage.by_source["merge"] == SourceUsage(20, min(20, num_written))
    assert usage.accepted == min(20, num_written)


def test_the_sources_add_up_whatever_is_drafted() -> None:
    core = make_core(max_batched_tokens=40)
    wanted = [replace(REQUEST, prompt=[*PROMPT, at]) for at in range(6)]
    ids = []
    for at, request in enumerate(wanted):
        written = alone(tiny_model(), request).token_ids
        drafter = (Oracle(written), AlwaysWrong(written, VOCAB_SIZE), RandomDraft(written, VOCAB_SIZE, at))[at % 3]
        ids.append(core.add(request, drafter))
    collected = drain(core)
    for request_id in ids:
        usage = collected.results[request_id].usage
        assert sum(each.drafted for each in usage.by_source.values()) == usage.drafted
        assert sum(each.accepted for each in usage.by_source.values()) == usage.accepted
        assert sum(each.num_rejected for each in usage.by_source.values()) == usage.drafted - usage.accepted


@pytest.mark.parametrize("chunk", [4, 16, 64])
def test_passes_that_run_the_prompt_are_told_apart(chunk: int) -> None:
    core = make_core(max_batched_tokens=chunk, max_num_seqs=4)
    usage = run_one(core, replace(REQUEST, max_new_tokens=10)).usage
    assert usage.prefill_forwards == -(-len(PROMPT) // chunk)
    assert usage.forwards == usage.prefill_forwards + 9
    again = run_one(core, replace(REQUEST, max_new_tokens=10)).usage
    assert (again.cached, again.prefill_forwards) == (len(PROMPT) - 1, 1)


def test_an_engine_tells_its_passes_and_what_was_drafted() -> None:
    with Engine(tiny_decoder(), TOKEN_BYTES, tiny_limits()) as engine:
        plain = engine.run(REQUEST)
        assert engine.stats().num_passes == 60
        drafted = engine.run(REQUEST, Oracle(plain.token_ids, hazard=1e-4))
        stats = engine.stats()
    assert stats.num_passes == 60 + drafted.usage.forwards
    assert stats.by_source == {"draft": SourceUsage(drafted.usage.drafted, drafted.usage.accepted)}
