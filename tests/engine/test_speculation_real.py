"""Speculative greedy decoding equals plain greedy decoding, token for token: SmolLM2, float32, real edits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from agent_runtime.prompt import ApplyPrompt, build_prompt
from agent_runtime.prompt.chat_template import ChatTemplate
from engine.engine import Engine
from engine.speculation import MergeDraft
from engine.types import GenerationRequest, GenerationResult
from tests.engine.drafters import AlwaysWrong, Oracle, RandomDraft
from tests.models import RealModel

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
