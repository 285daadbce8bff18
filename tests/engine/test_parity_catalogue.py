"""The catalogue's Qwen models give the logits of transformers on the same weights (SmolLM2: test_parity.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from agent_runtime.models.bf16_copy import locate_copy
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from agent_runtime.wiring import open_model
from engine.decoder import Decoder
from engine.weights import load
from tests.engine.test_parity import LOGITS_BOUND, REAL_TEXTS, logits_of, reference_logits, relative_error
from tests.models import RealModel, real_model


def kept_copy(model: RealModel) -> Path:
    """The bf16 folder that the first start makes; transformers takes half a minute to read the GGUF file."""
    settings = ModelSettings.from_env(os.environ)
    folder = locate_copy(resolve(model.name, ModelStore(settings.cache_dir)), settings.cache_dir)
    if not folder.is_dir():
        open_model(model.name, settings, LoadOptions(context=256))
    return folder


def transformers_logits(folder: Path, token_ids: list[int]) -> Tensor:
    return reference_logits(
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), token_ids
    )


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.long)])
def test_real_logits_equal_transformers(name: str) -> None:
    """Computed in float32, on weights that bf16 holds; one model after the other, as there may be room for one."""
    model = real_model(name)
    folder = kept_copy(model)
    token_ids = model.tokenizer.encode(REAL_TEXTS["a file"])
    torch.set_num_threads(os.cpu_count() or 1)
    expected = transformers_logits(folder, token_ids)
    actual = logits_of(Decoder(load(folder, torch.float32)), token_ids, [len(token_ids) - 20, 1, 19])
    assert relative_error(actual, expected) < LOGITS_BOUND
    assert torch.equal(actual.argmax(dim=-1), expected.argmax(dim=-1))
