"""A scripted model with a real tokenizer, for sessions, which build prompts before they ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from tests.agent_runtime.openai.scripted_chat import ChattingMerger, ScriptedChat
from tests.models import RealModel

Chatting = Callable[..., ChattingMerger]


@dataclass
class TokenizingChat(ScriptedChat):
    """A scripted chat that takes prompts."""

    text: TokenizerBundle | None = None


@pytest.fixture(scope="session")
def text_side(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture
def chatting(text_side: TokenizerBundle) -> Chatting:
    """Make mergers that return a text, and chat like `ScriptedChat`."""

    def make(text: str = "", **chat: Any) -> ChattingMerger:
        return ChattingMerger(text, chatting=TokenizingChat(text=text_side, **chat))

    return make
