"""Idle work: exact KV of prompts that took some over, and audits of their answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.core import EngineCore
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.reuse import Reuse
from engine.reuse.idle_queue import AuditClass, AuditConfig, IdleCounts, IdleQueue, IdleTask, compare
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest, GenerationResult
from tests.engine.cores import tiny_model
from tests.engine.reuse.turns import SPAN_BYTES, edited, random_ids, reusing_core, run
from tests.engine.test_lora import write_adapter
from tests.engine.tiny import TOKEN_BYTES, tiny_config, tiny_parameters

# The queue: the newest first, never too long, nothing for a prompt that has gone on.


def task(*prompt: int, root: bytes = b"us") -> IdleTask:
    return IdleTask(GenerationRequest(list(prompt), 1), root)


def popped(queue: IdleQueue) -> list[Sequence[int]]:
    prompts = []
    while (each := queue.pop()) is not None:
        prompts.append(each.request.prompt_ids)
    return prompts


def test_the_newest_comes_first() -> None:
    queue = IdleQueue(IdleCounts())
    for prompt in ([1], [2], [3]):
        queue.push(task(*prompt))
    assert popped(queue) == [[3], [2], [1]]
    assert queue.pop() is None


def test_the_oldest_goes_where_there_are_too_many() -> None:
    counts = IdleCounts()
    queue = IdleQueue(counts, most=2)
    for prompt in ([1], [2], [3], [4]):
        queue.push(task(*prompt))
    assert len(queue) == 2
    assert counts.dropped == 2
    assert popped(queue) == [[4], [3]]


@pytest.mark.parametrize(
    ("newer", "goes"),
    [([1, 2, 3, 4], True), ([1, 2, 9, 9, 9], True), ([1, 9, 3, 4], False), ([1, 2], True), ([9, 2, 3, 4], False)],
)
def test_a_prompt_that_has_gone_on_is_left(newer: list[int], goes: bool) -> None:
    """Half of [1, 2, 3, 4] is what the newer one has to begin with."""
    counts = IdleCounts()
    queue = IdleQueue(counts)
    queue.push(task(1, 2, 3, 4))
    queue.push(task(*newer))
    assert popped(queue) == ([newer] if goes else [newer, [1, 2, 3, 4]])
    assert counts.superseded == goes


def test_another_tenant_supersedes_nothing() -> None:
    queue = IdleQueue(IdleCounts())
    queue.push(task(1, 2, root=b"us"))
    queue.push(task(1, 2, root=b"them"))
    assert len(queue) == 2


# In the engine: nobody waits for idle work.


TURBO = Reuse("turbo")
OLD = random_ids(Random(1), 160)
NEW = [*OLD[:50], *random_ids(Random(2), 9), *OLD[55:]]
"""It takes over what lies behind position 59."""


def idle_core(**changes: Any) -> EngineCore:
    return reusing_core(**({"idle_rebuild": True} | changes))


def idle(core: EngineCore) -> None:
    """Nobody comes until all is done."""
    for _ in range(500):
        if not core.has_pending_work():
            return
        assert core.step() == [], "outputs of idle work are nobody's"
    raise AssertionError("idle work never ends")


def run_approximately(core: EngineCore, reuse: Reuse = TURBO, **fields: Any) -> GenerationResult:
    """The old prompt, then the new one with KV of it."""
    run(core, OLD, **fields)
    result = run(core, NEW, reuse, **fields)
    assert result.usage.reused_approximate > 90
    return result


def test_the_next_turn_finds_exact_kv_of_the_whole_prompt() -> None:
    core, without = idle_core(), reusing_core()
    for each in (core, without):
        run_approximately(each)
        idle(each)
    turn = [*NEW, 7, 8, 9]
    assert run(core, turn).usage.cached >= len(NEW)
    assert run(without, turn).usage.cached <= 60
    counts = core.idle_stats().counts
    assert (counts.rebuilt, counts.rebuilt_tokens) == (1, len(NEW) - 59)
    assert core.idle_stats().num_waiting == 0


def test_answers_stay_those_of_a_cold_run_bit_for_bit() -> None:
    """Behind an approximate run, within its rebuilding and behind that."""
    cold = run(reusing_core(batch_invariant=True), NEW, logprobs=5)
    for num_steps in (0, 1, 3, 1000):
        core = idle_core(batch_invariant=True, max_batched_tokens=16)
        approximate = run_approximately(core, logprobs=5)
        for _ in range(num_steps):
            core.step()
        exact = run(core, NEW, logprobs=5)
        assert (exact.token_ids, exact.logprobs) == (cold.token_ids, cold.logprobs)
        assert approximate.logprobs != cold.logprobs, "the case must be one in which it shows"
    assert exact.usage.cached == len(NEW) - 1


def test_what_is_rebuilt_replaces_what_was_tainted() -> None:
    """A later prompt that takes it over stands on KV of a full prefill."""
    core = idle_core()
    run_approximately(core)
    idle(core)
    core.pages.forget()
    request = core.add(GenerationRequest([5, *NEW], 1, reuse=TURBO))
    core.scheduler.schedule()
    plan = core._live[request][0].first_plan
    assert plan is not None
    assert plan.num_placed >= len(NEW) - 1
    assert {each.generation for each in plan.placed} == {0}


def test_who_comes_waits_for_one_pass_and_what_was_done_stays() -> None:
    core = idle_core(max_batched_tokens=16)
    run_approximately(core)
    core.step()
    core.step()
    assert len(core._live) == 1
    number = core.add(GenerationRequest([1, 2, 3], 1))
    assert list(core._live) == [number], "idle work has made way"
    (output,) = core.step()
    assert output.id == number
    assert output.result is not None
    assert core.idle_stats().counts.interrupted == 1
    idle(core)
    counts = core.idle_stats().counts
    assert counts.rebuilt == 1
    assert counts.rebuilt_tokens == len(NEW) - 59 - 2 * 16, "it went on where it was interrupted"


def test_a_pass_of_idle_work_is_short() -> None:
    core = idle_core()
    core.scheduler.config = SchedulerConfig(prefill_in_idle_time=10)
    run_approximately(core)
    computed = [59]
    while core.has_pending_work():
        core.step()
        computed += [sequence.num_computed for sequence, _ in core._live.values()]
    assert computed == [*range(59, len(NEW), 10)]


@pytest.mark.parametrize("reuse", [Reuse(), Reuse("turbo")])
def test_where_nothing_was_taken_over_nothing_is_left_to_do(reuse: Reuse) -> None:
    core = idle_core()
    run(core, OLD, reuse)
    assert not core.has_pending_work()


def test_it_is_off_unless_asked_for() -> None:
    core = reusing_core()
    run_approximately(core)
    assert not core.has_pending_work()


def test_another_tenant_finds_nothing() -> None:
    core = idle_core()
    run_approximately(core, salt="a")
    idle(core)
    assert core.idle_stats().counts.rebuilt == 1
    other = run(core, NEW, TURBO, salt="b")
    assert (other.usage.cached, other.usage.reused_approximate) == (0, 0)
    assert run(core, NEW, salt="a").usage.cached == len(NEW) - 1


def test_a_newer_prompt_of_the_conversation_takes_its_place() -> None:
    core = idle_core()
    run_approximately(core)
    newer = [*NEW[:120], *random_ids(Random(4), 5), *NEW[122:]]
    run(core, newer, TURBO)
    assert core.idle_stats().num_waiting == 1
    idle(core)
    counts = core.idle_stats().counts
    assert (counts.rebuilt, counts.superseded) == (1, 1)
    assert run(core, newer).usage.cached == len(newer) - 1


def test_a_rebuilding_that_fails_is_left_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    core = idle_core()
    run_approximately(core)
    with monkeypatch.context() as patch:
        patch.setattr(core.model, "forward_batch", lambda *_: 1 / 0)
        idle(core)
    assert core.idle_stats().counts.dropped == 1
    run(core, OLD)


def test_forgotten_prompts_are_not_run() -> None:
    core = idle_core(max_batched_tokens=16)
    run_approximately(core)
    core.step()
    core.forget_cached()
    assert not core.has_pending_work()
    assert core.pages.stats().num_cached == 0


@pytest.mark.parametrize("seed", range(2))
def test_exact_answers_among_idle_work(seed: int) -> None:
    """Whoever comes whenever: those who ask for exact answers get a cold engine's, and the books add up."""
    random = Random(seed)
    core = idle_core(batch_invariant=True, max_batched_tokens=24, audit=AuditConfig(share=0.5, fewest_tokens=8))
    prompts, expected = [OLD], {}
    for _ in range(250):
        if random.random() < 0.08:
            prompts.append(edited(random, random.choice(prompts))[:200])
            reuse = Reuse(random.choice(["exact", "turbo"]))
            request = GenerationRequest(prompts[-1], 4, reuse=reuse)
            expected[core.add(request)] = request
        for output in core.step():
            assert output.error is None
            if output.result is not None and (request := expected.pop(output.id)).reuse.mode == "exact":
                cold = run(reusing_core(batch_invariant=True), request.prompt_ids, max_new_tokens=4)
                assert output.result.token_ids == cold.token_ids
    counts = core.idle_stats().counts
    assert counts.rebuilt > 0
    assert counts.interrupted > 0


AUDIT = AuditConfig(share=1.0, fewest_tokens=4, most_tokens=6, step_up=0.25)


def test_an_audit_finds_what_two_runs_by_hand_do() -> None:
    """And it is no part of the answer: that is the same with and without."""
    core = idle_core(audit=AUDIT)
    answer = run_approximately(core, max_new_tokens=8)
    idle(core)
    by_hand = reusing_core()
    assert run_approximately(by_hand, max_new_tokens=8).token_ids == answer.token_ids
    ids = answer.token_ids[:6]
    runs = [
        run(by_hand, NEW, reuse, forced_ids=ids, max_new_tokens=6, logprobs=20).logprobs for reuse in (TURBO, Reuse())
    ]
    expected = compare(runs[1], runs[0])
    (found,) = core.idle_stats().audits.values()
    counts = core.idle_stats().counts
    assert (counts.audited, counts.rebuilt, counts.superseded) == (1, 1, 0)
    assert expected.kl > 1e-4, "the case must be one in which it shows"
    # Means of what was compared are dropped with the raise that it led to; a patient policy keeps them.
    patient = idle_core(audit=AuditConfig(share=1.0, most_tokens=6))
    run_approximately(patient, max_new_tokens=8)
    idle(patient)
    (kept,) = patient.idle_stats().audits.values()
    assert kept.num_tokens == 6
    assert kept.kl == pytest.approx(expected.kl / 6, rel=1e-3)
    assert found.raised_by == 0.25


def test_requests_of_a_class_that_is_too_far_run_more_again() -> None:
    core = idle_core(audit=AUDIT)
    result = run_approximately(core, Reuse("turbo"))
    assert "budget" not in result.usage.recomputed_by
    idle(core)
    (own,) = core.idle_stats().audits
    assert own == AuditClass(core.model.fingerprint.hex(), "turbo", own.root)
    assert core.idle_stats().audits[own].raised_by == 0.25
    for place, reuse, is_raised in [
        (20, Reuse("turbo"), True),
        (40, Reuse("turbo", budget=0.0), False),
    ]:
        core.pages.forget()
        usage = run(core, [*NEW[:place], 3, 1, 4, *NEW[place:]], reuse).usage
        assert ("budget" in usage.recomputed_by) is is_raised
        assert usage.reused_approximate > 0


def test_an_audit_never_compares_across_an_adapter_that_was_loaded_anew(tmp_path: Path) -> None:
    """Under the same name, between the request and its idle audit, or between the audit's two runs."""
    base = tiny_parameters(tiny_config())
    folders = [write_adapter(tmp_path / name, base, lora_alpha=alpha) for name, alpha in (("a", 8), ("b", 30))]
    for num_steps in (0, 1, 1000):
        core = idle_core(audit=AUDIT)
        core.load_adapter("own", folders[0])
        run_approximately(core, adapter="own", max_new_tokens=8)
        for _ in range(num_steps):
            core.step()
        core.load_adapter("own", folders[1])
        idle(core)
        counts = core.idle_stats().counts
        assert (counts.audited, counts.dropped) == ((1, 0) if num_steps == 1000 else (0, 1))


def test_an_audit_of_what_is_exact_after_all_finds_no_difference() -> None:
    """The same prompt at the same place: what is placed has the bits of what is computed."""
    core = idle_core(audit=AuditConfig(share=1.0), batch_invariant=True)
    run(core, OLD)
    core.pages.forget()
    assert run(core, OLD, TURBO).usage.reused_approximate == len(OLD) - 1
    idle(core)
    (found,) = core.idle_stats().audits.values()
    assert (found.raised_by, found.agreement) == (0.0, 1.0)
    assert found.kl == pytest.approx(0.0, abs=1e-9)


def test_an_audit_that_is_interrupted_is_made_later() -> None:
    core = idle_core(audit=AuditConfig(share=1.0), max_batched_tokens=16)
    run_approximately(core)
    for _ in range(6):
        core.step()
        run(core, [1, 2, 3])
    idle(core)
    counts = core.idle_stats().counts
    assert counts.audited == counts.rebuilt == 1
    assert counts.interrupted > 2


def test_without_rebuilding_only_the_sample_is_run_again() -> None:
    core = reusing_core(audit=AuditConfig(share=1.0))
    run_approximately(core)
    idle(core)
    assert core.idle_stats().counts.audited == 1
    named = reusing_core(audit=AuditConfig(share=1.0))
    run_approximately(named, Reuse("turbo", budget=0.0))
    assert not named.has_pending_work(), "who names a budget is not audited"


def test_an_engine_works_while_its_callers_are_away() -> None:
    config = EngineConfig(max_seq_len=480, page_size=4, span_bytes=SPAN_BYTES, idle_rebuild=True)
    with Engine(tiny_model(), TOKEN_BYTES, config) as engine:
        engine.run(GenerationRequest(OLD, 2))
        assert engine.run(GenerationRequest(NEW, 2, reuse=TURBO)).usage.reused_approximate > 90
        deadline = time.monotonic() + 60
        while engine.stats().idle.counts.rebuilt == 0:
            assert time.monotonic() < deadline, "nothing is done in idle time"
            time.sleep(0.01)
        assert engine.run(GenerationRequest(NEW, 2)).usage.cached == len(NEW) - 1
