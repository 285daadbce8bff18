"""A stand-in for an engine: it answers what a test says, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent_runtime.models.tokenizer import TokenizerBundle
from engine import errors as engine_errors
from engine.types import GenerationRequest, GenerationResult, GenerationStep, GenerationUsage, Proposer

Answer = Callable[[str], str | engine_errors.EngineError]
"""The text that is written behind a prompt."""


@dataclass
class FakeStream:
    """One answer in one step, or an error."""

    answer: str | engine_errors.EngineError
    usage: GenerationUsage
    ended: bool = False
    closed: bool = False

    def __next__(self) -> GenerationStep:
        if isinstance(self.answer, engine_errors.EngineError):
            raise self.answer
        if self.ended:
            raise StopIteration(GenerationResult((1, 2), self.answer.encode(), "stop", self.usage))
        self.ended = True
        return GenerationStep((1, 2), self.answer.encode())

    def close(self) -> None:
        self.closed = True

    cancel = close


@dataclass
class FakeEngine:
    """Answers what is asked of it with what `answer` makes of the prompt's text."""

    answer: Answer
    text: TokenizerBundle
    max_seq_len: int = 16384
    asked: list[str] = field(default_factory=list)
    requests: list[GenerationRequest] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)

    def generate(self, request: GenerationRequest, proposer: Proposer | None = None) -> FakeStream:
        table = self.text.tokenizer.token_bytes()
        prompt = b"".join(table[token] for token in request.prompt_ids).decode("utf-8", "replace")
        self.asked.append(prompt)
        self.requests.append(request)
        self.limits.append(request.max_new_tokens)
        usage = GenerationUsage(prompt=10, completion=5, forwards=2)
        if request.reuse.mode != "exact":
            usage.reused_approximate, usage.recomputed_by = 4, {"asked": 5, "tail": 1}
        self.streams.append(FakeStream(self.answer(prompt), usage))
        return self.streams[-1]
