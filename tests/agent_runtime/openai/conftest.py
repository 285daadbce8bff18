"""A small model for the chats of these tests: what it answers is theirs to say (`tests.scripted_model`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from engine.engine_config import EngineConfig
from tests.models import RealModel
from tests.scripted_model import ENDLESS, Line, scripted_engine

CONTEXT = 512
CODE = "def area(radius):\n    return 3 * radius * radius\n"
REPEAT = "Repeat this code exactly:"


@pytest.fixture(scope="module")
def loaded(smollm2: RealModel) -> Iterator[LoadedModel]:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    text = metadata.to_bundle(tokenizer)
    lines = [Line((REPEAT,), f"```python\n{CODE}```\nThat is all there is to it."), replace(ENDLESS, pass_s=0.0)]
    with scripted_engine(lines, text, EngineConfig(CONTEXT, check_integrity=True)) as engine:
        yield LoadedModel(smollm2.name, engine, text, 0.0, 0)
