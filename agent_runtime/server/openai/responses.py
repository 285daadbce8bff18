"""Builds the JSON of answers below /v1: complete ones, and the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from agent_runtime.llm.interface import ChatAnswer, ChatTokenLogprob
from agent_runtime.types import ApplyResult, SourceUsage, Usage

PREDICTION = "prediction"
"""Source name of the draft tokens that come from a caller's prediction."""

MIN_LOGPROB = -9999.0
"""OpenAI's log-probability of a nearly impossible token; JSON has no infinity."""

FILE_MEMBERS = (
    "path",
    "method",
    "rung",
    "candidates",
    "certainty",
    "confidence",
    "checks",
    "sha256_before",
    "sha256_after",
    "diff",
)
"""Fields of a merged file in `hunk`, in addition to its text."""


@dataclass(frozen=True, slots=True)
class OpenAIReply:
    """The answer to a chat or an edit. `extension` is the field `hunk`, which OpenAI does not have."""

    text: str
    finish_reason: str
    usage: Usage
    extension: Mapping[str, Any]
    logprobs: Sequence[ChatTokenLogprob] | None = None


def make_chat_reply(answer: ChatAnswer, *, with_logprobs: bool = False) -> OpenAIReply:
    """Return the reply of a chat."""
    logprobs = answer.logprobs if with_logprobs else None
    return OpenAIReply(
        answer.text, answer.finish_reason, answer.usage, _make_extension(answer.usage, answer.timings), logprobs
    )


def make_apply_reply(result: ApplyResult) -> OpenAIReply:
    """Return the reply of an edit: the whole merged file."""
    return OpenAIReply(result.file.merged, "stop", result.usage, make_apply_extension(result))


def make_apply_extension(result: ApplyResult) -> dict[str, Any]:
    """Return the field `hunk` of an edit: how the file was merged, its checks, usage and timings."""
    file = asdict(result.file)
    return (
        {"status": result.status}
        | {name: file[name] for name in FILE_MEMBERS}
        | _make_extension(result.usage, result.timings)
    )


def usage_to_json(usage: Usage) -> dict[str, Any]:
    """Return token counts as OpenAI has them; of a prediction, only drafted tokens count."""
    predicted = usage.by_source.get(PREDICTION, SourceUsage())
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": predicted.accepted,
            "rejected_prediction_tokens": predicted.rejected,
        },
    }


@dataclass(frozen=True, slots=True)
class Completion:
    """Builds the JSON of one answer: its id, the model's name and the time are in each chunk."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def build_whole(self, reply: OpenAIReply) -> dict[str, Any]:
        """Return the complete answer."""
        message = {"role": "assistant", "content": reply.text, "refusal": None}
        choice = {"index": 0, "message": message} | _build_end(reply)
        return self._build_object("chat.completion", [choice]) | {
            "usage": usage_to_json(reply.usage),
            "hunk": reply.extension,
        }

    def build_first_chunk(self) -> dict[str, Any]:
        """Return the first chunk, which has the role."""
        return self._build_chunk({"role": "assistant", "content": "", "refusal": None})

    def build_text_chunk(self, text: str) -> dict[str, Any]:
        """Return a chunk with the next part of the text."""
        return self._build_chunk({"content": text})

    def build_last_chunk(self, reply: OpenAIReply) -> dict[str, Any]:
        """Return the last chunk with a choice: the finish reason and the log-probabilities of all tokens."""
        return self._build_object("chat.completion.chunk", [{"index": 0, "delta": {}} | _build_end(reply)]) | {
            "hunk": reply.extension
        }

    def build_usage_chunk(self, reply: OpenAIReply) -> dict[str, Any]:
        """Return the chunk with the usage, which comes last if it is requested."""
        return self._build_object("chat.completion.chunk", []) | {"usage": usage_to_json(reply.usage)}

    def _build_chunk(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        return self._build_object(
            "chat.completion.chunk", [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
        )

    def _build_object(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _build_end(reply: OpenAIReply) -> dict[str, Any]:
    logprobs = None
    if reply.logprobs is not None:
        logprobs = {"content": [_logprob_to_json(each) for each in reply.logprobs], "refusal": None}
    return {"logprobs": logprobs, "finish_reason": reply.finish_reason}


def _logprob_to_json(scored: ChatTokenLogprob) -> dict[str, Any]:
    top = [_token_to_json(token, logprob) for token, logprob in scored.top]
    return _token_to_json(scored.token, scored.logprob) | {"top_logprobs": top}


def _token_to_json(token: bytes, logprob: float) -> dict[str, Any]:
    text = token.decode("utf-8", errors="replace")
    return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": list(token)}


def _make_extension(usage: Usage, timings: Mapping[str, float]) -> dict[str, Any]:
    return {"usage": asdict(usage), "timings": {name: round(value, 3) for name, value in timings.items()}}
