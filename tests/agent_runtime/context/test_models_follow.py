"""Models are asked about a file that has changed since it was shown: they go by the note, where it is a look-up."""

from __future__ import annotations

import pytest
import torch

from agent_runtime.context import HistoryMessage, SessionContext
from agent_runtime.models.text_side import TURN_ENDS
from agent_runtime.prompt.chat_template import ChatTemplate
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.model import Decoder
from engine.types import GenerationRequest
from engine.weights import load
from tests.models import RealModel

NAMES = ("TIMEOUT", "RETRIES", "WORKERS", "BACKLOG")
HEAD = "".join(f"{name} = {10 + number}\n" for number, name in enumerate(NAMES))
BODY = "".join(f"\n\ndef step_{number}(x):\n    return x + {number}\n" for number in range(8))


@pytest.mark.long
def test_a_changed_constant_is_told_by_its_new_value(qwen05: RealModel) -> None:
    tokenizer = qwen05.tokenizer
    ends = frozenset(number for each in TURN_ENDS if (number := tokenizer.control_id(each)) is not None)
    with Engine(Decoder(load(qwen05.gguf, torch.bfloat16)), tokenizer.token_bytes(), EngineConfig(4096)) as engine:
        for number, name in enumerate(NAMES):
            session = SessionContext(ChatTemplate(qwen05.chat_template), tokenizer, rebase_share=1.0)
            file, edited = HEAD + BODY, (HEAD + BODY).replace(f"{name} = {10 + number}\n", f"{name} = {70 + number}\n")
            first = session.turn({"settings.py": file}, (), "Is it complete?", "balanced")
            engine.run(GenerationRequest(first.token_ids, 1))
            said = [HistoryMessage("user", "Is it complete?"), HistoryMessage("assistant", "Yes.")]
            question = f"Which value does settings.py assign to {name}? Answer with the number only."
            prompt = session.turn({"settings.py": edited}, said, question, "balanced")
            assert prompt.noted == ("settings.py",)
            result = engine.run(GenerationRequest(prompt.token_ids, 8, stop_ids=ends))
            assert str(70 + number) in tokenizer.decode(result.token_ids)
            assert result.usage.cached >= prompt.num_kept > 100
