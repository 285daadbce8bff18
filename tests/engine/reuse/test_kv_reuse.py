"""KV reuse in the engine equals the slow way, and other requests do not see it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.kv_cache import root_key
from engine.kv_pool import page_bytes
from engine.reuse import Reuse, ReuseMode
from engine.speculation.step_times import StepTimes
from engine.types import GenerationRequest, GenerationResult, Output, Proposer
from tests.engine.cores import Oracle, RandomDraft, tiny_model
from tests.engine.reuse.turns import edited, random_ends, random_ids, reusing_core, run, run_slowly
from tests.engine.tiny import FAMILIES, QWEN3, VOCAB_SIZE, tiny_config, tiny_parameters

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


MODELS = FAMILIES | {
    "scaled": {"rope_divisors": (1.0, 1.5, 3.0, 4.0), "rope_scale": 1.3},
    "qwen2, int8": {},
    "qwen3, int8": QWEN3,
}
"""With RoPE as YaRN scales it, and with KV in int8, too."""


@pytest.mark.parametrize("mode", ["fast", "turbo"])
@pytest.mark.parametrize(
    ("seed", "model"),
    [*((seed, "qwen2") for seed in range(12)), *((seed, name) for seed in range(3) for name in MODELS)],
)
def test_the_engine_computes_what_the_slow_way_does(mode: ReuseMode, seed: int, model: str) -> None:
    """Segments, budgets, chunks of any size: token by token, with what is taken over put in its place."""
    random = Random(seed)
    old = random_ids(random, random.randrange(60, 150))
    new = edited(random, old)
    reuse = Reuse(mode, random_ends(random, len(new)), random.choice([None, 0.0, 0.2]))
    limits = {"max_batched_tokens": random.choice([16, 40, 512]), "page_size": random.choice([4, 16])}
    decoder = Decoder(tiny_parameters(tiny_config(**MODELS[model])), kv_int8=model.endswith("int8"))
    core = reusing_core(decoder, **limits)
    if model == "mistral":
        assert core.reuse is None, "KV before a window is not kept"
        return
    run(core, old, max_new_tokens=1)
    number = core.add(GenerationRequest(new, 3, logprobs=5, reuse=reuse))
    outputs = core.step()
    if core._live[number][0].first_plan is None:
        return
    sources = taken(core)
    while not any(output.result for output in outputs):
        outputs = core.step()
    result = next(output.result for output in outputs if output.result is not None)

    before, _ = run_slowly(core.model, old)
    _, logits = run_slowly(core.model, new, {at: before[source] for at, source in sources.items()})
    usage = result.usage
    assert usage.reused_approximate == len(sources) > 0
    assert usage.cached + usage.reused_approximate + usage.recomputed == usage.prompt == len(new)
    assert set(logits) | set(sources) == set(range(len(new)))
    assert sum(usage.recomputed_by.values()) == usage.recomputed
    is_int8 = model.endswith("int8")
    expected = torch.log_softmax(logits[len(new) - 1].to(torch.float32), 0)
    for token_id, logprob in result.logprobs[0].top:
        assert abs(float(expected[token_id]) - logprob) < (
            0.2 if model.endswith("int8") else 2e-4
        )  # a last bit turns codes
    assert result.token_ids[0] == int(expected.argmax()) or is_int8


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


# What is kept of a step is the KV of the tokens that became final, whatever else was in it.


def check_kept(core: EngineCore, token_ids: list[int], *, but: int = 1) -> None:
    """All tokens of a sequence that had KV, but so many at most, are stored with what a cold run computes."""
    assert core.reuse is not None
    store = core.reuse.store
    root = root_key(core.model.fingerprint, "", None)
    kept, _ = run_slowly(core.model, token_ids)
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
    monkeypatch.setattr("engine.runner.torch_runner.StepTimes", lambda: StepTimes({1: 1.0, 1024: 1.0}))
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
    exact, _ = run_slowly(core.model, new)
    entries = list(core.reuse.store._index._entries.values())
    assert {entry.generation for entry in entries if entry.record > 0} >= {0, 1}
    for match in core.reuse.store.find(root, np.array(new, dtype=np.uint32), 0):
        stored = core.reuse.store.values[1][torch.from_numpy(match.slots)]
        expected = torch.cat([each.values[1] for each in exact[match.start : match.end]])
        assert (match.generation == 0) == torch.allclose(stored, expected, atol=2e-5, rtol=1e-4)
