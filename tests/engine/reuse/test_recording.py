"""What is kept of a pass is the KV of the tokens that became final, whatever else was in it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from engine.core import EngineCore
from engine.kv_cache import root_key
from engine.kv_pool import page_bytes
from engine.reuse import Reuse
from engine.speculation.step_times import StepTimes
from engine.types import GenerationRequest, Proposer
from tests.engine.cores import tiny_model
from tests.engine.drafters import Oracle, RandomDraft
from tests.engine.reuse import obvious
from tests.engine.reuse.turns import random_ids, reusing_core, run
from tests.engine.tiny import VOCAB_SIZE


def check_kept(core: EngineCore, token_ids: list[int], *, but: int = 1) -> None:
    """All tokens of a sequence that had KV, but so many at most, are stored with what a cold run computes."""
    assert core.reuse is not None
    store = core.reuse.store
    root = root_key(core.model.fingerprint, "", None)
    kept, _ = obvious.run(core.model, token_ids)
    covered = 0
    for match in store.find(root, np.array(token_ids, dtype=np.uint32), 0):
        assert (match.generation, match.source) == (0, match.start)
        covered += len(match.slots)
        for layer in range(core.model.config.num_layers):
            for stored, part in ((store.keys, "keys"), (store.values, "values")):
                expected = torch.cat([getattr(each, part)[layer] for each in kept[match.start : match.end]])
                torch.testing.assert_close(stored[layer][torch.from_numpy(match.slots)], expected, atol=2e-5, rtol=1e-4)
    assert covered >= len(token_ids) - but


def drafters(target: list[int], seed: int) -> list[Proposer | None]:
    return [Oracle(target), RandomDraft(target, VOCAB_SIZE, seed), None]


def check_no_leak(core: EngineCore) -> None:
    """Without sequences every slot of the store is free or an entry's."""
    assert core.reuse is not None
    store = core.reuse.store
    num_tokens = store.stats().num_tokens
    found = store.reserve(store.num_slots - num_tokens)
    assert found is not None
    assert store.stats().num_tokens == num_tokens, "nothing had to be evicted"
    store.give_back(found)


@pytest.mark.parametrize("seed", range(3))
def test_drafts_beside_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted ones are kept, rejected ones are not."""
    monkeypatch.setattr("engine.runner.step_timer.StepTimes", lambda: StepTimes({1: 1.0, 1024: 1.0}))
    random = Random(seed)
    core = reusing_core()
    prompts = [random_ids(random, 30) for _ in range(3)]
    targets = [list(run(reusing_core(), prompt, max_new_tokens=40).token_ids) for prompt in prompts]
    proposers = [drafters(target, seed)[number] for number, target in enumerate(targets)]
    for prompt, proposer in zip(prompts, proposers, strict=True):
        core.add(GenerationRequest(prompt, 40), proposer)
    results = {}
    while core.has_pending_work():
        results |= {output.id: output.result for output in core.step() if output.result is not None}
    for number, prompt in enumerate(prompts):
        assert list(results[number].token_ids) == targets[number]
        # the last token was chosen, and the one before is not looked at
        check_kept(core, [*prompt, *targets[number]], but=2)
    check_no_leak(core)


def test_sequences_that_lose_their_pages_are_kept_once_more() -> None:
    random = Random(1)
    model = tiny_model()
    core = reusing_core(model, kv_bytes=24 * page_bytes(model.config, 4, torch.float32), max_batched_tokens=16)
    prompts = [random_ids(random, 40) for _ in range(3)]
    for prompt in prompts:
        core.add(GenerationRequest(prompt, 30))
    results = {}
    while core.has_pending_work():
        results |= {output.id: output.result for output in core.step() if output.result is not None}
    assert any(each.usage.preempted for each in results.values()), "the case must be one in which it happens"
    for number, prompt in enumerate(prompts):
        check_kept(core, [*prompt, *results[number].token_ids], but=2)
    check_no_leak(core)


def test_a_store_that_is_full_keeps_what_it_has_room_for() -> None:
    """Rows that found no slot are left out; those that did have their own KV."""
    core = reusing_core(span_bytes=100 * 2 * 2 * 2 * 8 * 4)
    random = Random(2)
    first, second = random_ids(random, 70), random_ids(random, 70)
    core.add(GenerationRequest(first, 4))
    core.add(GenerationRequest(second, 4))
    results = {}
    while core.has_pending_work():
        results |= {output.id: output.result for output in core.step() if output.result is not None}
    assert core.reuse is not None
    assert 0 < core.reuse.store.stats().num_tokens <= 100
    check_kept(core, [*first, *results[0].token_ids], but=74)
    check_kept(core, [*second, *results[1].token_ids], but=74)


def test_a_request_that_was_taken_back_leaves_what_it_computed() -> None:
    core = reusing_core(max_batched_tokens=16)
    prompt = random_ids(Random(4), 60)
    number = core.add(GenerationRequest(prompt, 5))
    core.step()
    core.step()
    core.cancel(number)
    check_kept(core, prompt[:33])
    check_no_leak(core)


def test_what_was_run_on_taken_kv_is_not_exact_because_the_sequence_was_run_exactly_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It loses its pages, and finds nothing to take over when it comes again: two parts, each of its own generation."""
    random = Random(5)
    core = reusing_core(max_batched_tokens=16)
    old = random_ids(random, 80)
    run(core, old, max_new_tokens=1)
    new = [*random_ids(random, 6), *old, *random_ids(random, 40)]
    number = core.add(GenerationRequest(new, 3, reuse=Reuse("turbo")))
    core.step()
    core.step()
    sequence = core._live[number][0]
    assert sequence.plan is not None
    assert core.reuse is not None
    core.scheduler._preempt(sequence)
    with monkeypatch.context() as patch:
        patch.setattr(core.reuse.store, "find", lambda *_: [])
        core.step()
    assert sequence.plan is None
    while core.has_pending_work():
        core.step()
    check_no_leak(core)
    root = root_key(core.model.fingerprint, "", None)
    exact, _ = obvious.run(core.model, new)
    entries = list(core.reuse.store._index._entries.values())
    assert {entry.generation for entry in entries if entry.record > 0} >= {0, 1}
    for match in core.reuse.store.find(root, np.array(new, dtype=np.uint32), 0):
        stored = core.reuse.store.values[1][torch.from_numpy(match.slots)]
        expected = torch.cat([each.values[1] for each in exact[match.start : match.end]])
        assert (match.generation == 0) == torch.allclose(stored, expected, atol=2e-5, rtol=1e-4)
