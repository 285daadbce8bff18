"""Answers of the model in a chat: messages or a ready prompt in, text out, as it is written."""

from agent_runtime.chat.types import (
    ChatAnswer,
    ChatMessage,
    ChatModel,
    ChatRequest,
    ChatTokenLogprob,
    Prompt,
    ReadyPrompt,
)

__all__ = [
    "ChatAnswer",
    "ChatMessage",
    "ChatModel",
    "ChatRequest",
    "ChatTokenLogprob",
    "Prompt",
    "ReadyPrompt",
]
