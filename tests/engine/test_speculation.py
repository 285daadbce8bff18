"""A draft changes how many steps an output takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from agent_runtime.prompt.builder import ApplyPrompt, build_prompt
from agent_runtime.prompt.chat_template import ChatTemplate
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine import Engine
from engine.sampling import Choice, Sampler, compute_distribution, read_row, uniform
from engine.speculation import MergeDraft
from engine.types import Draft, DraftRun, GenerationRequest, GenerationResult, Proposer, SourceUsage
from tests.engine.cores import (
    PROMPT,
    AlwaysWrong,
    Collected,
    Oracle,
    RandomDraft,
    alone,
    drain,
    make_core,
    run_one,
    same,
    tiny_model,
)
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_decoder, tiny_limits, tiny_parameters
from tests.models import RealModel

# Tiny models: greedy, sampled, with any option, in any company.


def merged(target: Sequence[int], seed: int) -> MergeDraft:
    """An honest draft: a merge that departs from the target in a few places, between original and update."""
    places = np.random.default_rng(seed)
    merge = [token_id if places.random() > 0.1 else (token_id + 1) % VOCAB_SIZE for token_id in target]
    cut = int(places.integers(0, len(target) + 1))
    return MergeDraft(merges=[merge], original=[*target[:cut], *target[cut + 3 :]], update=target[cut : cut + 6])


DRAFTERS: dict[str, Callable[[Sequence[int], int], Proposer]] = {
    "oracle": lambda target, _: Oracle(target),
    "always wrong": lambda target, _: AlwaysWrong(target, VOCAB_SIZE),
    "random": lambda target, seed: RandomDraft(target, VOCAB_SIZE, seed),
    "merge": merged,
}

requests = st.builds(
    GenerationRequest,
    prompt=st.integers(1, 30).map(lambda size: (PROMPT * 2)[:size]),
    max_new_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 2.0]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 4]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.4, 0.8]),
    logit_bias=st.sampled_from([{}, {7: 3.0, 11: -2.0}]),
    logprobs=st.sampled_from([None, 0, 3]),
    seed=st.integers(0, 5),
    stop_ids=st.sampled_from([frozenset(), frozenset({11, 40})]),
    stop=st.sampled_from([(), (b"</x>",), (b"a", b"</")]),
)


@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=15)
@given(request_=requests, seed=st.integers(0, 99), rows=st.sampled_from([3, 64]), rows_are_free=st.booleans())
def test_a_draft_changes_no_token_no_text_and_no_log_probability(
    drafter: str, request_: GenerationRequest, seed: int, rows: int, rows_are_free: bool
) -> None:
    """float32; the LM head in blocks that drafts fill several times, and in one."""
    model = tiny_model()
    free = alone(model, replace(request_, stop_ids=frozenset(), stop=()))
    core = make_core(model=model, rows_are_free=rows_are_free)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.runner.step_rows.LM_HEAD_ROWS", rows)
        result = run_one(core, request_, DRAFTERS[drafter](free.token_ids, seed))
    assert same(result, alone(model, request_))
    usage = result.usage
    assert usage.accepted <= usage.drafted
    if result.finish_reason == "length":  # the prompt is one pass, and each pass gives a token that was not drafted
        assert usage.completion == usage.forwards + usage.accepted
    if drafter == "always wrong":
        assert usage.accepted == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_oracle_needs_few_passes_and_a_wrong_draft_as_many_as_none(temperature: float) -> None:
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=70, temperature=temperature, seed=4)
    target = alone(tiny_model(), request)
    passes = {
        name: run_one(make_core(), request, drafter(target.token_ids, 1)).usage for name, drafter in DRAFTERS.items()
    }
    assert passes["oracle"].forwards == 1
    assert passes["merge"].forwards < 30
    assert passes["always wrong"].forwards == 70
    assert passes["always wrong"].drafted > 0


NUM_SEEDS, FEW_TOKENS = 2400, 6


def either(seed: int) -> Proposer:
    """One of two first tokens."""
    return Oracle([seed % 2])


def pairs(core: EngineCore, drafter: Callable[[int], Proposer] = either) -> Tensor:
    """How often each pair of tokens is drawn, [FEW_TOKENS, FEW_TOKENS], with one of two first tokens as the draft.

    With each of them as the draft equally often, a rule that favours what is drafted would favour all alike.
    """
    counts = torch.zeros(FEW_TOKENS, FEW_TOKENS, dtype=torch.float64)
    for first_seed in range(0, NUM_SEEDS, 60):
        for seed in range(first_seed, first_seed + 60):
            request = GenerationRequest(prompt=[1, 2], max_new_tokens=2, temperature=4.0, seed=seed)
            core.add(request, drafter(seed))
        for result in drain(core).results.values():
            counts[result.token_ids] += 1
    return counts


def probabilities(model: Decoder) -> Tensor:
    """Of each pair, by softmax over full passes."""
    expected = torch.zeros(FEW_TOKENS, FEW_TOKENS, dtype=torch.float64)
    for first in range(FEW_TOKENS):
        logits = model.logits(model.forward(torch.tensor([1, 2, first]), model.new_caches(1, 3)))
        odds = (logits.double() / 4.0).softmax(dim=-1)
        expected[first] = odds[1, first] * odds[2]
    return expected


def deviation(counts: Tensor, expected: Tensor) -> float:
    """The G statistic of counts against probabilities, what is expected fewer than five times taken together."""
    wanted = expected * counts.sum()
    likely = wanted >= 5
    counts = torch.cat((counts[likely], counts[~likely].sum()[None]))
    wanted = torch.cat((wanted[likely], wanted[~likely].sum()[None])).clamp(min=1e-9)
    return float(2 * torch.special.xlogy(counts, counts / wanted).sum())


MOST_DEVIATION = 68.0
"""99.9 % of a chi square with 36 degrees of freedom."""


def few_token_core(*, rows_are_free: bool = False) -> EngineCore:
    model = Decoder(tiny_parameters(tiny_config(vocab_size=FEW_TOKENS), seed=3))
    return make_core(num_pages=200, model=model, max_num_seqs=60, rows_are_free=rows_are_free)


def test_sampled_pairs_of_tokens_follow_the_model_with_a_draft_at_work() -> None:
    core = few_token_core()
    counts, expected = pairs(core), probabilities(core.model)
    assert float(expected.sum()) == pytest.approx(1.0)
    assert deviation(counts, expected) < MOST_DEVIATION
    accepted = core.drafted["draft"].accepted
    assert NUM_SEEDS / 6 < accepted < NUM_SEEDS / 3


def test_a_rule_that_accepts_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic mistake: accept a draft token with its probability, and else draw from all tokens, it among them."""
    choose = Sampler.choose

    def generous(self: Sampler, logits: Tensor, output_ids: Sequence[int], draft: Sequence[int]) -> Choice:
        if draft:
            ids, weights = compute_distribution(read_row(logits, 0), self._request)
            assert ids is None
            if uniform(self._request.seed + 10_000, len(output_ids)) < weights[draft[0]] / weights.sum():
                rest = choose(self, logits[1:], [*output_ids, draft[0]], draft[1:])
                return Choice([draft[0], *rest.token_ids])
        return choose(self, logits, output_ids, draft)

    monkeypatch.setattr(Sampler, "choose", generous)
    core = few_token_core()
    assert deviation(pairs(core), probabilities(core.model)) > 2 * MOST_DEVIATION


class DraftedLives(RuleBasedStateMachine):
    """Requests come, are drafted for in any way, are cancelled and lose their pages; what ends is what each gets alone.

    Prompts go on from outputs that have ended, so KV that a rejected draft left behind would be read. Every step ends
    with a check of the books.
    """

    @initialize(
        num_pages=st.sampled_from([18, 24, 40]),
        max_batched_tokens=st.sampled_from([5, 40, 512]),
        windowed=st.booleans(),
        rows_are_free=st.booleans(),
    )
    def start(self, num_pages: int, max_batched_tokens: int, windowed: bool, rows_are_free: bool) -> None:
        self.core = make_core(
            num_pages=num_pages,
            model=tiny_model(windowed=windowed),
            rows_are_free=rows_are_free,
            max_num_seqs=4,
            max_batched_tokens=max_batched_tokens,
        )
        self.collected = Collected()
        self.expected: dict[int, GenerationResult] = {}
        self.ended: list[list[int]] = [PROMPT]

    @rule(request_=requests, drafter=st.sampled_from([None, *DRAFTERS]), seed=st.integers(0, 99), data=st.data())
    def add(self, request_: GenerationRequest, drafter: str | None, seed: int, data: st.DataObject) -> None:
        prompt = data.draw(st.sampled_from(self.ended))[: data.draw(st.integers(1, 30))]
        request = replace(request_, prompt=prompt, max_new_tokens=min(request_.max_new_tokens, 25))
        target = alone(self.core.model, request)
        proposer = None if drafter is None else DRAFTERS[drafter](target.token_ids, seed)
        self.expected[self.core.add(request, proposer)] = target

    @rule(num_steps=st.integers(1, 5))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            outputs = self.core.step()
            self.collected.take(outputs)
            for output in outputs:
                if output.result is not None:
                    assert same(output.result, self.expected.pop(output.id))
                    self.ended.append([*PROMPT[:4], *output.result.token_ids])

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.expected:
            request_id = data.draw(st.sampled_from(sorted(self.expected)))
            self.core.cancel(request_id)
            del self.expected[request_id]

    @invariant()
    def nothing_has_failed(self) -> None:
        if hasattr(self, "collected"):
            assert not self.collected.errors

    def teardown(self) -> None:
        if hasattr(self, "core"):
            drain(self.core, self.collected)
            for request_id, target in self.expected.items():
                assert same(self.collected.results[request_id], target)


TestDraftedLives = DraftedLives.TestCase
TestDraftedLives.settings = settings(max_examples=10, stateful_step_count=15)


# Drafted and accepted tokens are counted by source, as far as the model saw them.


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
    assert result.usage.by_source == {"merge": SourceUsage(15, 15, 1), "update": SourceUsage(12, 5, 1)}
    assert (result.usage.drafted, result.usage.accepted) == (27, 20)
    run_one(core, REQUEST, Parted(target.token_ids, 5, 3, num_merge=8))
    assert core.drafted == {"merge": SourceUsage(23, 20, 2), "update": SourceUsage(12, 5, 1)}, "of all requests"


def test_what_a_cut_draft_left_out_is_not_counted() -> None:
    target = alone(tiny_model(), REQUEST)
    core = make_core(max_batched_tokens=len(PROMPT) + 12, max_drafted=0, max_num_seqs=4)
    result = run_one(core, REQUEST, Parted(target.token_ids, 10, 40, num_merge=10))
    assert same(result, target)
    assert result.usage.by_source == {"merge": SourceUsage(10, 10, 1), "update": SourceUsage(2, 0, 1)}


@pytest.mark.parametrize("stop_at", [3, 12])
def test_tokens_behind_the_end_of_the_output_are_not_accepted(stop_at: int) -> None:
    target = alone(tiny_model(), REQUEST).token_ids
    request = replace(REQUEST, stop_ids=frozenset({target[stop_at]}))
    num_written = target.index(target[stop_at]) + 1
    usage = run_one(make_core(), request, Parted(target, 20, 5, num_merge=20)).usage
    assert usage.by_source["merge"] == SourceUsage(20, min(20, num_written), 1)
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
    assert stats.by_source == {"draft": SourceUsage(drafted.usage.drafted, drafted.usage.accepted, 1)}


# SmolLM2 in float32 on real edits: speculative greedy decoding equals plain greedy decoding.


EDITS = {
    "python": (
        "import math\n\n\ndef area(radius):\n    return math.pi * radius**2\n\n\ndef length(radius):\n"
        "    return 2 * math.pi * radius",
        "def area(radius):\n    if radius < 0:\n        raise ValueError(radius)\n    return math.pi * radius**2\n\n"
        "# ... existing code ...",
    ),
    "typescript": (
        "export function add(a: number, b: number) {\n\treturn a + b;\n}\n\nexport const ZERO = 0;",
        "// ... existing code ...\n\nexport const ZERO = 0;\nexport const ONE = 1;",
    ),
}
MAX_NEW_TOKENS = 48


@dataclass(frozen=True)
class Case:
    prompt: ApplyPrompt
    request: GenerationRequest
    plain: GenerationResult


@pytest.fixture(scope="module", params=EDITS)
def case(request: pytest.FixtureRequest, smollm2: RealModel, smollm2_engine: Engine) -> Case:
    file_text, edit_text = EDITS[request.param]
    prompt = build_prompt(
        ChatTemplate(smollm2.chat_template),
        smollm2.tokenizer,
        file_text=file_text,
        edit_text=edit_text,
        instruction="",
    )
    end = smollm2.tokenizer.get_control_id("<|im_end|>")
    assert end is not None
    asked = GenerationRequest(
        prompt=prompt.token_ids,
        max_new_tokens=MAX_NEW_TOKENS,
        stop_ids=frozenset({end}),
        stop=(prompt.stop.encode(),),
    )
    plain = smollm2_engine.run(asked)
    assert plain.usage.forwards >= plain.usage.completion > 20
    return Case(prompt, asked, plain)


def copy_of(case: Case) -> MergeDraft:
    return MergeDraft(merges=[], original=case.prompt.file_ids, update=case.prompt.edit_ids)


def test_a_merge_draft_gives_the_plain_text_in_fewer_passes(smollm2_engine: Engine, case: Case) -> None:
    result = smollm2_engine.run(case.request, copy_of(case))
    smollm2_engine.check_integrity()
    assert result == case.plain
    assert result.usage.accepted > 0
    assert result.usage.forwards < result.usage.completion / 2


def test_an_oracle_gives_the_plain_text_in_two_passes(smollm2_engine: Engine, case: Case) -> None:
    result = smollm2_engine.run(case.request, Oracle(case.plain.token_ids))
    assert result == case.plain
    assert result.usage.forwards <= 2


def test_a_draft_that_is_always_wrong_gives_the_plain_text(
    smollm2: RealModel, smollm2_engine: Engine, case: Case
) -> None:
    wrong = AlwaysWrong(case.plain.token_ids, smollm2.gguf.config.vocab_size)
    result = smollm2_engine.run(case.request, wrong)
    smollm2_engine.check_integrity()
    assert result == case.plain
    assert result.usage.accepted == 0 < result.usage.drafted


@pytest.mark.parametrize("seed", [0, 1])
def test_a_random_draft_gives_the_plain_text(smollm2: RealModel, smollm2_engine: Engine, case: Case, seed: int) -> None:
    draft = RandomDraft(case.plain.token_ids, smollm2.gguf.config.vocab_size, seed)
    result = smollm2_engine.run(case.request, draft)
    smollm2_engine.check_integrity()
    assert result == case.plain
    assert 0 < result.usage.accepted < result.usage.drafted


def test_a_seeded_sample_is_the_same_with_a_draft(smollm2_engine: Engine, case: Case) -> None:
    request = GenerationRequest(
        prompt=case.request.prompt, max_new_tokens=24, temperature=0.8, top_p=0.9, seed=3, stop=case.request.stop
    )
    plain = smollm2_engine.run(request)
    drafted = smollm2_engine.run(request, copy_of(case))
    assert drafted == plain
    assert plain.token_ids != case.plain.token_ids[:24]
