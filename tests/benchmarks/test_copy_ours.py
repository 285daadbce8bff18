"""Our engine as a contestant of the copy contest: SmolLM2's tokenizer, a tiny random model, a file of a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.types import ApplyRequest
from benchmarks.copy.cases import CopyCase
from benchmarks.copy.ours import CopyOurs
from benchmarks.peers.protocol import Answer, Arrival, Job
from engine.core import EngineCore
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.scheduler import SchedulerConfig
from tests.engine.tiny import tiny_decoder
from tests.models import RealModel

CASE = CopyCase(
    "6x1", "a.py", "a = 1\nb = 2\nc = 3\nd = 4\n", "a = 1\nb = 5\nc = 3\nd = 4\n", "markers", "b = 5\nc = 3\n"
)
CONTEXT, MOST_TOKENS = 2048, 24


@pytest.fixture(scope="module")
def ours(smollm2: RealModel) -> Iterator[CopyOurs]:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    text = metadata.to_bundle(tokenizer)
    decoder = tiny_decoder(vocab_size=len(tokenizer.token_bytes()), max_positions=CONTEXT)
    config = EngineConfig(CONTEXT, scheduler=SchedulerConfig(max_num_seqs=1))
    core = EngineCore(decoder, tokenizer.token_bytes(), config)
    with Engine(decoder, tokenizer.token_bytes(), config) as engine:
        yield CopyOurs(core, LoadedModel(smollm2.name, engine, text, 0.0, 0))


@pytest.fixture(scope="module")
def prepared(ours: CopyOurs) -> dict[str, Any]:
    return ours.prepare(CASE.to_json())


def written(ours: CopyOurs, prepared: dict[str, Any], *, drafted: bool) -> Answer:
    job = Job("s", (Arrival(tuple(prepared["prompt_ids"]), MOST_TOKENS),), {"case": CASE.name} if drafted else {})
    (raw,) = ours.run(job.to_json())
    return Answer.from_json(raw)


def test_what_is_written_with_drafts_is_what_is_written_plainly(ours: CopyOurs, prepared: dict[str, Any]) -> None:
    plain, drafted = (written(ours, prepared, drafted=way) for way in (False, True))
    assert drafted.token_ids == plain.token_ids
    assert len(set(plain.times)) == MOST_TOKENS


def test_the_draft_is_the_applys(ours: CopyOurs, prepared: dict[str, Any]) -> None:
    proposer = ours.proposer({"case": CASE.name})
    assert proposer is not None
    token_bytes = ours._loaded.text.tokenizer.token_bytes()
    draft = b"".join(token_bytes[token] for token in proposer.propose([], 64).token_ids)
    assert draft.startswith(CASE.after.encode()), "the merge by rule"
    assert ours.proposer({}) is None


def test_the_reference_is_what_an_apply_gets(ours: CopyOurs, prepared: dict[str, Any]) -> None:
    bounds = {"case": CASE.name, "salt": "s", "most_tokens": MOST_TOKENS, "most_passes": 99}
    made = ours.reference(bounds)
    plain = written(ours, prepared, drafted=False)
    assert tuple(made["token_ids"]) == plain.token_ids[: len(made["token_ids"])]
    request = ApplyRequest(
        CASE.before.encode(), CASE.edit, path=CASE.path, mode="model", scope="file", max_tokens=MOST_TOKENS
    )
    result = Applier(lambda: ModelMerger(ours._loaded)).apply(request)
    assert result.file.merged.rstrip("\n") == made["text"].rstrip("\n")
    assert ours.reference(bounds | {"most_passes": 1}) == {"gave_up": True}


def test_a_file_that_does_not_fit_is_told(ours: CopyOurs) -> None:
    long = CopyCase("9x1", "a.py", "value = 1\n" * 1800, "", "markers", "value = 2\n")
    assert "do not fit" in ours.prepare(long.to_json())["too_large"]
