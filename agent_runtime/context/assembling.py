"""Puts a prompt together out of segments, and remembers the ids of its texts for the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_runtime.context.types import ContextEncoder, PartKind, PromptPart
from engine.reuse import PromptSegment


@dataclass(slots=True)
class Assembly:
    """Segments in order, and what they are."""

    segments: list[PromptSegment] = field(default_factory=list)
    parts: list[PromptPart] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, kind: PartKind, name: str, segments: Iterable[PromptSegment]) -> None:
        """One part; nothing where it has no tokens."""
        before = self.num_tokens
        for segment in segments:
            if segment.token_ids:
                self.segments.append(segment)
                self.num_tokens += len(segment.token_ids)
        if self.num_tokens > before:
            self.parts.append(PromptPart(kind, name, self.num_tokens))


class TextIds:
    """Ids of texts, encoded once for as long as each next prompt has them too."""

    def __init__(self, encoder: ContextEncoder) -> None:
        self._encoder = encoder
        self._last: dict[tuple[str, bool], list[int]] = {}
        self._used: dict[tuple[str, bool], list[int]] = {}

    def plain(self, text: str) -> list[int]:
        """Of a text in which nothing is a control token."""
        return self._ids(text, ours=False)

    def ours(self, text: str) -> list[int]:
        """Of the chat template's text."""
        return self._ids(text, ours=True)

    def begin(self) -> None:
        """A new prompt: what the last one did not have is forgotten."""
        self._last, self._used = self._used, {}

    def _ids(self, text: str, *, ours: bool) -> list[int]:
        ids = self._used.get((text, ours), self._last.get((text, ours)))
        if ids is None:
            ids = self._encoder.encode_template(text) if ours else self._encoder.encode(text)
        self._used[text, ours] = ids
        return ids
