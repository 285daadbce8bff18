"""The values of one chat answer: what is asked, what is answered, and who answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from agent_runtime.generation.watcher import Watcher
from agent_runtime.types import Draft, Usage
from engine.reuse import EXACT, Reuse

if TYPE_CHECKING:
    from agent_runtime.models.text_side import TextSide  # torch comes with it, and the slot is there before the model


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message; `role` as the model's chat template knows it: system, user, assistant, tool."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ReadyPrompt:
    """A prompt that is laid out already, as a session's is, and what the engine may take over for it."""

    token_ids: tuple[int, ...]
    reuse: Reuse = EXACT


Prompt = tuple[ChatMessage, ...] | ReadyPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One answer to be written.

    max_tokens: of the answer; None, and what is more than that: as many as the context has room for. The sampling is
    the engine's (`engine.types.GenerationRequest`); temperature 0 is greedy. logprobs: of each token, with so many of
    the likeliest (0: its own only). stop: texts that end the answer and are not part of it. prediction: what the
    answer is expected to be, which changes nothing but the time that it takes. draft: `copy` guesses the answer from
    the prediction and the prompt, `none` writes a token a pass. deadline_s: seconds from now after which it fails;
    None: what the model was opened with. salt: as in `agent_runtime.types.Options`.
    """

    prompt: Prompt
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    prediction: str | None = None
    draft: Draft = "copy"
    deadline_s: float | None = None
    salt: str = ""


@dataclass(frozen=True, slots=True)
class ChatTokenLogprob:
    """One token of an answer as bytes, the logarithm of its probability, and the likeliest ones, best first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A whole answer; `length` says that the token limit or the context's end cut it.

    `timings`: milliseconds, `prompt_ms` to lay the prompt out, `prefill_ms` to the end of the pass that gave the first
    tokens, `decode_ms` for the rest, `total_ms`.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    usage: Usage
    timings: dict[str, float]
    logprobs: tuple[ChatTokenLogprob, ...] = ()


class ChatModel(Protocol):
    """A model that answers; any number of threads may ask it at once."""

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or its file's."""
        ...

    @property
    def text(self) -> TextSide:
        """Its tokenizer and its chat template."""
        ...

    @property
    def max_seq_len(self) -> int:
        """Tokens of prompt and answer together."""
        ...

    def answer(self, request: ChatRequest, watcher: Watcher) -> ChatAnswer:
        """Write the answer; the watcher is given its text in pieces, which add up to the answer's.

        Raises BadRequest where the chat template does not take the messages or a number makes no sense, TooLarge where
        the prompt leaves no room in the context; Busy, Cancelled, DeadlinePassed, ModelFailed, or ModelUnavailable once
        the model is closed.
        """
        ...
