"""JSON of answers below /v1, whole and in chunks."""

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

LEAST_LOGPROB = -9999.0
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
    """An answer, however it came about. `extension` is what only this service tells (`hunk`)."""

    text: str
    finish_reason: str
    usage: Usage
    extension: Mapping[str, Any]
    logprobs: Sequence[ChatTokenLogprob] | None = None


def reply_of_chat(answer: ChatAnswer, *, with_logprobs: bool = False) -> OpenAIReply:
    """Return the reply of a chat."""
    logprobs = answer.logprobs if with_logprobs else None
    return OpenAIReply(
        answer.text, answer.finish_reason, answer.usage, _extension(answer.usage, answer.timings), logprobs
    )


def reply_of_apply(result: ApplyResult) -> OpenAIReply:
    """The whole file with its edit."""
    return OpenAIReply(result.file.merged, "stop", result.usage, extension_of_apply(result))


def extension_of_apply(result: ApplyResult) -> dict[str, Any]:
    """How a file was merged, with which checks, and what it took."""
    file = asdict(result.file)
    return (
        {"status": result.status}
        | {name: file[name] for name in FILE_MEMBERS}
        | _extension(result.usage, result.timings)
    )


def usage_to_json(usage: Usage) -> dict[str, Any]:
    """Tokens as OpenAI counts them; a prediction's are those that were put before the model."""
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
    """The frame of one answer: its id, the model's name and the time."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, reply: OpenAIReply) -> dict[str, Any]:
        """The answer in one piece."""
        message = {"role": "assistant", "content": reply.text, "refusal": None}
        choice = {"index": 0, "message": message} | _end(reply)
        return self._build_object("chat.completion", [choice]) | {
            "usage": usage_to_json(reply.usage),
            "hunk": reply.extension,
        }

    def begin(self) -> dict[str, Any]:
        """The first chunk, which says who speaks."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def piece(self, text: str) -> dict[str, Any]:
        """A chunk with the next of the text."""
        return self._chunk({"content": text})

    def end(self, reply: OpenAIReply) -> dict[str, Any]:
        """Return the last chunk: the finish reason and the log-probabilities of all tokens."""
        return self._build_object("chat.completion.chunk", [{"index": 0, "delta": {}} | _end(reply)]) | {
            "hunk": reply.extension
        }

    def usage(self, reply: OpenAIReply) -> dict[str, Any]:
        """The last chunk, where it is asked for."""
        return self._build_object("chat.completion.chunk", []) | {"usage": usage_to_json(reply.usage)}

    def _chunk(self, delta: Mapping[str, Any]) -> dict[str, Any]:
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


def _end(reply: OpenAIReply) -> dict[str, Any]:
    logprobs = None
    if reply.logprobs is not None:
        logprobs = {"content": [_logprob_to_json(each) for each in reply.logprobs], "refusal": None}
    return {"logprobs": logprobs, "finish_reason": reply.finish_reason}


def _logprob_to_json(scored: ChatTokenLogprob) -> dict[str, Any]:
    top = [_token_to_json(token, logprob) for token, logprob in scored.top]
    return _token_to_json(scored.token, scored.logprob) | {"top_logprobs": top}


def _token_to_json(token: bytes, logprob: float) -> dict[str, Any]:
    text = token.decode("utf-8", errors="replace")
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(token)}


def _extension(usage: Usage, timings: Mapping[str, float]) -> dict[str, Any]:
    return {"usage": asdict(usage), "timings": {name: round(value, 3) for name, value in timings.items()}}
