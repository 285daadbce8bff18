"""A small real model for the chats of these tests: SmolLM2 in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_runtime.models.load import LoadedModel
from agent_runtime.models.text_side import from_gguf
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.model import Decoder
from tests.models import RealModel

CONTEXT = 512


@pytest.fixture(scope="module")
def loaded(smollm2: RealModel, smollm2_decoder: Decoder) -> Iterator[LoadedModel]:
    tokenizer, metadata = from_gguf(smollm2.gguf)
    with Engine(smollm2_decoder, tokenizer.token_bytes(), EngineConfig(CONTEXT, check_integrity=True)) as engine:
        yield LoadedModel(smollm2.name, engine, metadata.with_tokenizer(tokenizer), 0.0, 0)
