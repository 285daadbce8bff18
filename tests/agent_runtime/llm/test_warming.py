"""What all prompts begin with is run once: SmolLM2, float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agent_runtime import wiring
from agent_runtime.llm.merger import warm_up
from agent_runtime.models.config import LoadOptions, MergeOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.progress import SilentProgress
from agent_runtime.models.store import ModelFiles
from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from agent_runtime.prompt import build_prompt
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.types import GenerationRequest, GenerationUsage
from tests.models import RealModel

NUM_PAGES, PAGE_SIZE = 28, 32


@pytest.fixture(scope="module")
def text(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture
def loaded(smollm2: RealModel, smollm2_decoder: Decoder, text: TokenizerBundle) -> Iterator[LoadedModel]:
    """With memory for the shared part and a little more."""
    kv_bytes = NUM_PAGES * page_bytes(smollm2_decoder.config, PAGE_SIZE, torch.float32)
    config = EngineConfig(NUM_PAGES * PAGE_SIZE, kv_bytes, PAGE_SIZE, check_integrity=True)
    with Engine(smollm2_decoder, text.tokenizer.token_bytes(), config) as engine:
        yield LoadedModel(smollm2.name, engine, text, 0.0, 0)


def asked(loaded: LoadedModel, file_text: str, edit_text: str) -> tuple[GenerationUsage, int]:
    """What one token of an answer to this edit took, and how many tokens of its prompt are all edits'."""
    text = loaded.text
    prompt = build_prompt(
        text.template, text.tokenizer, file_text=file_text, edit_text=edit_text, instruction="", form=text.form
    )
    return loaded.engine.run(GenerationRequest(prompt=prompt.token_ids, max_new_tokens=1)).usage, prompt.num_shared


def test_the_first_edit_finds_all_of_the_shared_part(loaded: LoadedModel) -> None:
    assert loaded.engine.stats().kv.num_cached == 0
    num_tokens = warm_up(loaded)
    usage, num_shared = asked(loaded, "a = 1", "a = 2")
    assert num_tokens == num_shared > 100
    assert num_shared <= usage.cached < num_shared + 8, "the file differs from whatever was run before"


def test_the_second_edit_finds_it_where_nothing_was_done_before(loaded: LoadedModel) -> None:
    first, _ = asked(loaded, "a = 1", "a = 2")
    second, num_shared = asked(loaded, "import os\n\nprint(os.name)", "print(os.sep)")
    assert first.cached == 0
    assert second.cached >= num_shared


def test_it_outlives_what_fills_the_memory(loaded: LoadedModel) -> None:
    warm_up(loaded)
    for number in range(4):
        loaded.engine.run(GenerationRequest(prompt=range(100 * number, 100 * number + 100), max_new_tokens=1))
    assert loaded.engine.stats().kv.num_free == 0, "the memory is full, and the shared part was used the longest ago"
    usage, num_shared = asked(loaded, "a = 1", "a = 2")
    assert usage.cached >= num_shared


@pytest.mark.parametrize("config", [EngineConfig(32), EngineConfig(2048, 1 << 21)], ids=["context", "memory"])
def test_an_engine_that_it_does_not_fit_is_no_fault(loaded: LoadedModel, config: EngineConfig) -> None:
    with Engine(loaded.engine.model, loaded.text.tokenizer.token_bytes(), config) as small:
        assert warm_up(replace(loaded, engine=small)) == 0


def test_a_service_s_model_is_loaded_with_it(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "resolve", lambda *_: ModelFiles("gguf", Path("x"), "x"))
    monkeypatch.setattr(wiring, "load_model", lambda *_, **__: loaded)
    slot = wiring.model_slot("x", ModelSettings(Path("x")), LoadOptions(), SilentProgress(), MergeOptions())
    assert loaded.engine.stats().kv.num_cached == 0, "looking for it runs nothing"
    slot.load()
    usage, num_shared = asked(loaded, "a = 1", "a = 2")
    assert usage.cached >= num_shared


def test_the_environment_s_form_wins_over_the_model_s(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    forms: list[str] = []
    monkeypatch.setattr(wiring, "resolve", lambda *_: ModelFiles("gguf", Path("x"), "x", prompt_form="of the model"))
    monkeypatch.setattr(wiring, "load_model", lambda files, *_, **__: forms.append(files.prompt_form) or loaded)
    for own in (None, "tags"):
        wiring.open_model("x", ModelSettings(Path("x"), prompt_form=own), LoadOptions())
    assert forms == ["of the model", "tags"]
