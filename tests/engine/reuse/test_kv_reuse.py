"""Taking KV over in the engine: what it computes is what the slow obvious way computes, and nobody else sees it."""

from __future__ import annotations

from random import Random

import pytest
import torch

from engine.core import EngineCore
from engine.reuse import Reuse, ReuseMode
from engine.types import GenerationRequest, GenerationResult, Output
from tests.engine.cores import tiny_model
from tests.engine.reuse import obvious
from tests.engine.reuse.turns import edited, random_ends, random_ids, reusing_core, run

TURBO = Reuse("turbo")


def taken(core: EngineCore) -> dict[int, int]:
    """Of the request that runs alone: where each token that it takes over stood in the prompt before."""
    ((sequence, _),) = core._live.values()
    plan = sequence.first_plan
    assert plan is not None
    return {
        position: each.source + position - each.start
        for each in plan.placed
        for position in range(each.start, each.end)
    }


@pytest.mark.parametrize("mode", ["fast", "turbo"])
@pytest.mark.parametrize("seed", range(12))
def test_the_engine_computes_what_the_slow_way_does(mode: ReuseMode, seed: int) -> None:
    """Segments, budgets, chunks of any size: token by token, with what is taken over put in its place."""
    random = Random(seed)
    old = random_ids(random, random.randrange(60, 150))
    new = edited(random, old)
    reuse = Reuse(mode, random_ends(random, len(new)), random.choice([None, 0.0, 0.2]))
    core = reusing_core(max_batched_tokens=random.choice([16, 40, 512]), page_size=random.choice([4, 16]))
    run(core, old, max_new_tokens=1)
    number = core.add(GenerationRequest(new, 3, logprobs=5, reuse=reuse))
    outputs = core.step()
    if core._live[number][0].first_plan is None:
        return
    sources = taken(core)
    while not any(output.result for output in outputs):
        outputs = core.step()
    result = next(output.result for output in outputs if output.result is not None)

    before, _ = obvious.run(core.model, old)
    _, logits = obvious.run(core.model, new, {at: before[source] for at, source in sources.items()})
    usage = result.usage
    assert usage.reused_approximate == len(sources) > 0
    assert usage.cached + usage.reused_approximate + usage.recomputed == usage.prompt == len(new)
    assert set(logits) | set(sources) == set(range(len(new)))
    assert sum(usage.recomputed_by.values()) == usage.recomputed
    expected = torch.log_softmax(logits[len(new) - 1].to(torch.float32), 0)
    for token_id, logprob in result.logprobs[0].top:
        assert abs(float(expected[token_id]) - logprob) < 2e-4
    assert result.token_ids[0] == int(expected.argmax())


@pytest.mark.parametrize("seed", range(6))
def test_a_budget_of_one_is_a_full_prefill(seed: int) -> None:
    """Bit for bit, where sums do not depend on what else is in a pass."""
    random = Random(seed)
    old = random_ids(random, 120)
    new = edited(random, old)
    cold = run(reusing_core(batch_invariant=True), new, logprobs=5)
    core = reusing_core(batch_invariant=True, max_batched_tokens=random.choice([16, 512]))
    run(core, old)
    full = run(core, new, Reuse("fast", budget=1.0), logprobs=5)
    assert (full.token_ids, full.logprobs) == (cold.token_ids, cold.logprobs)


def test_what_is_taken_over_unchanged_has_the_same_bits() -> None:
    """The prompt again, without its exact chain: all of it but the last token is placed, with the bits it had."""
    prompt = random_ids(Random(3), 100)
    core = reusing_core(batch_invariant=True)
    first = run(core, prompt, logprobs=5)
    core.pages.forget()
    again = run(core, prompt, TURBO, logprobs=5)
    assert again.usage.reused_approximate == len(prompt) - 1
    assert again.usage.cached == 0
    assert (again.token_ids, again.logprobs) == (first.token_ids, first.logprobs)


def test_nothing_taken_over_enters_the_exact_chain() -> None:
    """Whoever asks for the same prompt in exact mode gets the answer of a cold run, and computes what was placed."""
    random = Random(5)
    for _ in range(8):
        old = random_ids(random, 120)
        new = [*old[:50], *random_ids(random, 9), *old[55:]]
        core = reusing_core(batch_invariant=True)
        run(core, old)
        approximate = run(core, new, TURBO, logprobs=5)
        exact = run(core, new, logprobs=5)
        cold = run(reusing_core(batch_invariant=True), new, logprobs=5)
        assert approximate.usage.reused_approximate > 40
        assert exact.usage.reused_approximate == 0
        assert exact.usage.cached <= 59, "up to the end of the change all is exact, nothing behind it"
        assert (exact.token_ids, exact.logprobs) == (cold.token_ids, cold.logprobs)
        assert approximate.logprobs != cold.logprobs, "the case must be one in which it shows"


def test_what_is_run_before_the_first_taken_token_is_exact() -> None:
    """A change right behind the cached prefix sees exact KV only: the next turn finds it in the chain."""
    old = random_ids(Random(1), 120)
    new = [*old[:50], *random_ids(Random(2), 10), *old[50:]]
    core = reusing_core()
    run(core, old)
    run(core, new, TURBO)
    assert run(core, new).usage.cached >= 56  # 60 is where it ends, on a page of 4 maybe less


def test_tenants_and_adapters_take_nothing_over_from_one_another() -> None:
    prompt = random_ids(Random(7), 100)
    core = reusing_core()
    run(core, prompt, salt="a")
    core.pages.forget()
    other = run(core, prompt, TURBO, salt="b")
    assert (other.usage.cached, other.usage.reused_approximate) == (0, 0)
    core.pages.forget()
    assert run(core, prompt, TURBO, salt="a").usage.reused_approximate == len(prompt) - 1


def test_the_output_is_taken_over_too() -> None:
    """What the model wrote stands in the next prompt: its KV is there."""
    prompt = random_ids(Random(9), 60)
    core = reusing_core()
    written = run(core, prompt, max_new_tokens=30).token_ids
    again = run(core, [*random_ids(Random(10), 20), *written, 1], TURBO)
    assert again.usage.reused_approximate >= len(written) - 2  # the last one was chosen, and not run


def test_exact_requests_take_nothing_over() -> None:
    random = Random(11)
    old = random_ids(random, 100)
    new = [*random_ids(random, 5), *old]
    core = reusing_core(batch_invariant=True)
    run(core, old)
    exact = run(core, new, logprobs=3)
    assert (exact.usage.cached, exact.usage.reused_approximate) == (0, 0)
    assert exact.usage.recomputed_by == {"changed": len(new)}
    assert exact.logprobs == run(reusing_core(batch_invariant=True), new, logprobs=3).logprobs


def test_without_memory_for_spans_every_request_is_exact() -> None:
    old = random_ids(Random(12), 80)
    core = reusing_core(span_bytes=0)
    run(core, old)
    assert run(core, [1, *old], TURBO).usage.reused_approximate == 0


def test_after_three_changes_a_prompt_is_run_exactly() -> None:
    """Each turn changes the middle, and goes on at the end: what is written there gets older with every change."""
    random = Random(13)
    core = reusing_core(batch_invariant=True, max_seq_len=900)
    head, middle, end = random_ids(random, 40), random_ids(random, 12), random_ids(random, 60)
    run(core, [*head, *middle, *end])
    rebuilt = 0
    for _ in range(9):
        middle, end = random_ids(random, 12), [*end, *random_ids(random, 12)]
        prompt = [*head, *middle, *end]
        result = run(core, prompt, TURBO, logprobs=3)
        if not result.usage.reused_approximate:
            rebuilt += 1
            cold = run(reusing_core(batch_invariant=True, max_seq_len=900), prompt, logprobs=3)
            assert result.logprobs == cold.logprobs
    assert 2 <= rebuilt <= 3


def test_turns_that_only_go_on_do_not_age() -> None:
    """One change, then turns as an agent makes them: all but what is new is taken over or cached, in each of them."""
    random = Random(14)
    core = reusing_core(max_seq_len=900)
    prompt = random_ids(random, 120)
    run(core, prompt)
    prompt = [*prompt[:50], *random_ids(random, 10), *prompt[50:]]
    ends: tuple[int, ...] = (30, 60, 90, 130)
    for turn in range(8):
        result = run(core, prompt, Reuse("fast", ends))
        assert result.usage.recomputed <= (50 if turn == 0 else 21), turn
        prompt = [*prompt, *result.token_ids, *random_ids(random, 15)]
        ends = (*ends, len(prompt))


@pytest.mark.parametrize("seed", range(4))
def test_many_at_once_with_drafts_little_memory_and_cancellation(seed: int) -> None:
    """Whatever comes together, the books add up, and exact requests get the answers of a cold engine."""
    random = Random(seed)
    model = tiny_model()
    core = reusing_core(
        model, kv_bytes=60 * 4 * 2 * 2 * 2 * 8 * 4, max_batched_tokens=32, max_num_seqs=4, span_bytes=60_000
    )
    texts = [random_ids(random, random.randrange(20, 90)) for _ in range(3)]
    expected: dict[int, GenerationRequest] = {}
    found: dict[int, GenerationResult] = {}
    for _ in range(60):
        if random.random() < 0.5:
            texts.append(edited(random, random.choice(texts))[:110])
            prompt = texts[-1]
            mode: ReuseMode = random.choice(["exact", "fast", "turbo"])
            forced = tuple(random_ids(random, 4)) if random.random() < 0.3 else ()
            request = GenerationRequest(prompt, 8, reuse=Reuse(mode, range(5, len(prompt), 5)), forced_ids=forced)
            expected[core.add(request)] = request
        if random.random() < 0.1 and core._live:
            cancelled = random.choice(list(core._live))
            core.cancel(cancelled)
            del expected[cancelled]
        _take(core.step(), found)
    while core.has_pending_work():
        _take(core.step(), found)
    assert found.keys() == expected.keys()
    assert any(each.usage.reused_approximate for each in found.values())
    for number, request in expected.items():
        if request.reuse.mode == "exact":
            cold = run(reusing_core(model), request.prompt_ids, max_new_tokens=8, forced_ids=request.forced_ids)
            assert found[number].token_ids == cold.token_ids
    assert core.pages.num_available == core.pages.num_pages, "pages leak"


def _take(outputs: list[Output], found: dict[int, GenerationResult]) -> None:
    for output in outputs:
        assert output.error is None
        if output.result is not None:
            found[output.id] = output.result
