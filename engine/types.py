"""The values that the engine takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.errors import RequestError

FinishReason = Literal["stop", "length"]
"""`stop`: a stop id or stop string came; `length`: the token limit was reached, the text may be cut."""


class Proposer(Protocol):
    """Guesses what the model will write next; a wrong guess costs time and never changes the output."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Up to `max_tokens` ids that may follow `output_ids`, all that the model has written so far."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to be continued.

    prompt: token ids. max_new_tokens: the most ids to write. temperature: 0 is greedy. top_p: the smallest set of
    tokens whose probabilities reach it is sampled from. seed: makes sampling repeatable. stop_ids: ids that end the
    output and are not part of it. stop: byte strings that end the output and are not part of it.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("the prompt is empty; give at least one token")
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not 0.0 <= self.temperature <= 10.0:
            raise RequestError(f"temperature is {self.temperature}; it must lie in [0, 10]")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p is {self.top_p}; it must lie in (0, 1]")
        if b"" in self.stop:
            raise RequestError("a stop string is empty")


@dataclass(slots=True)
class GenerationUsage:
    """Tokens of one request by reason, counted as it runs; `accepted <= drafted`, the rest was rejected."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """What one forward pass added: `text` is what became certain to be output (it may lag behind the ids).

    Both are empty behind a chunk of the prompt.
    """

    token_ids: tuple[int, ...]
    text: bytes


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished sequence. `text` is the output's bytes up to the stop, `token_ids` all ids up to the stop id."""

    token_ids: tuple[int, ...]
    text: bytes
    finish_reason: FinishReason
    usage: GenerationUsage = field(compare=False)
