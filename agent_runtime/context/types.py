"""Values of a session's prompt: turns, parts and segments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from agent_runtime.prompt import TextEncoder
from agent_runtime.types import ReuseName
from engine.reuse import PromptSegment, Reuse, ReuseMode
from repo_cache.spans import span_keys
from repo_cache.types import FileTokens

ContextMode = ReuseName
"""How a session's prompts follow changes of its files.

`balanced` leaves a changed file as it was first sent and appends what changed (see `change_notes`); the engine reuses
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
class SessionPrompt:
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

    def to_reuse(self, budget: float | None = None) -> Reuse:
        """What the engine may reuse for it.

        The question is run whatever is stored: one that was asked before a file changed would bring along what was
        concluded then.
        """
        mode: ReuseMode = "exact" if self.mode == "balanced" else self.mode
        allowed = Reuse.of(self.segments, mode, budget)
        if mode == "exact" or self.parts[-1].kind != "question":
            return allowed
        return replace(allowed, recompute=((self.parts[-2].end, self.parts[-1].end),))


def make_file_segments(
    encoder: ContextEncoder, path: str, tokens: FileTokens, *, ends_line: bool
) -> list[PromptSegment]:
    """A file between a line that names it and one that ends it: a segment a span, with the cache's ids and keys.

    `ends_line`: whether the file ends with a newline, or is empty. Whatever the path holds, it is text.
    """
    head, tail = f"<file path={json.dumps(path, ensure_ascii=False)}>\n", "</file>\n"
    ids, spans = tokens.token_ids.tolist(), tokens.spans
    borders = pairwise([0, *spans.ends.tolist()])
    body = [PromptSegment(ids[start:end], key) for (start, end), key in zip(borders, spans.key_list(), strict=True)]
    return [
        keyed(encoder, encoder.encode(head)),
        *body,
        keyed(encoder, encoder.encode(tail if ends_line else f"\n{tail}")),
    ]


def keyed(encoder: ContextEncoder, token_ids: Sequence[int]) -> PromptSegment:
    """A segment of these tokens, with the key that a span of the cache would have (`repo_cache.spans`)."""
    (key,) = span_keys(encoder.fingerprint, np.array(token_ids, np.uint32), 0, [len(token_ids)])
    return PromptSegment(tuple(token_ids), key.tobytes())
