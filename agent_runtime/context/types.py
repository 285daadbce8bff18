"""The values of a session's prompts: what a turn is made of, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agent_runtime.prompt import TextEncoder
from agent_runtime.types import ReuseName
from engine.reuse import PromptSegment, Reuse, ReuseMode

ContextMode = ReuseName
"""How a session's prompts follow changes of its files.

`balanced` leaves a changed file as it was first sent and appends what changed (see `overlay`); the engine reuses
exactly what it has computed. The others write the file anew; `fast` and `turbo` are the engine's modes of reuse behind
the change.
"""


PartKind = Literal["preamble", "tools", "file", "history", "question"]


class ContextEncoder(TextEncoder, Protocol):
    """A tokenizer that says which one it is."""

    @property
    def fingerprint(self) -> bytes:
        """Of all that decides which ids a text has."""
        ...


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One message of the conversation; `role` as the chat template knows it: user, assistant, tool."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class PromptPart:
    """What the prompt's tokens up to `end` are, from the end of the part before: `name` is a path or a number."""

    kind: PartKind
    name: str
    end: int


@dataclass(frozen=True, slots=True)
class ContextPrompt:
    """One turn's prompt.

    parts: what stands where. order: the files as they stand. noted: files that stand as they were first sent, with
    notes on what changed. rebased: files that were written anew although they had notes. num_kept: the tokens at the
    beginning that are those of the turn before, whose KV is there unless it was evicted.
    """

    segments: tuple[PromptSegment, ...]
    parts: tuple[PromptPart, ...]
    order: tuple[str, ...]
    noted: tuple[str, ...]
    rebased: tuple[str, ...]
    num_kept: int
    mode: ContextMode

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All of the prompt."""
        return tuple(number for segment in self.segments for number in segment.token_ids)

    def reuse(self, budget: float | None = None) -> Reuse:
        """What the engine may reuse for it.

        The question is run whatever is stored: one that was asked before a file changed would bring along what was
        concluded then.
        """
        mode: ReuseMode = "exact" if self.mode == "balanced" else self.mode
        allowed = Reuse.of(self.segments, mode, budget)
        if mode == "exact" or self.parts[-1].kind != "question":
            return allowed
        return replace(allowed, recompute=((self.parts[-2].end, self.parts[-1].end),))
