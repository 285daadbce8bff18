"""Keeps a session's prompt within a budget of tokens as coding agents do it, and the same way each time.

What they do. The provider's context editing (Anthropic's `clear_tool_uses`), Claude Code, Qwen Code and opencode put a
placeholder in the place of the oldest tool results; all of them wait for a threshold and then clear a good part at
once, because each change in the middle of a prompt costs the cached prefix behind it (Anthropic: `clear_at_least`;
opencode: the newest 40k tokens of results are kept, nothing is done for less than 20k). Where that is not enough, pi,
Codex, Claude Code and opencode have the model write a summary of the older messages and go on from it and the newest
ones. A single result that is very long is cut when it is made (pi: 2,000 lines or 50 KB, head or tail; Codex: 10k
tokens, head and tail). SWE-agent keeps the newest results, and can be told to clear only every few turns.

What is done here, with the numbers of a window of 16k tokens. A message over `cap` keeps its head and its tail, from
the turn that it first appears in. Once a prompt exceeds `budget`:

1. the oldest tool results become a placeholder, the newest three excepted, until the prompt is down to `low_water`;
2. where that is not enough, the oldest messages become one summary: here no model's, but what the user asked and which
   files were read, so that it is the same in every run;
3. where the newest results alone are too long, they are cleared, too, oldest first, all but the last message.

What is compacted stays so. Between two compactions a prompt begins with the one before it and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.reuse.sessions import Message

CLEARED = "[Old tool result content cleared]"
LEFT_OUT = "\n[... {} characters left out ...]\n"

KEPT_RESULTS = 3
"""The newest tool results that are cleared last; Anthropic's default."""

MOST_REQUESTS, REQUEST_CHARS, MOST_PATHS = 8, 160, 12
"""What of the user's messages and of the files read is told in a summary."""

_HEAD_SHARE = 2 / 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens: of a prompt's messages at most, of what a compaction leaves, of one message at most."""

    budget: int = 15_360
    low_water: int = 8_192
    cap: int = 3_840

    def __post_init__(self) -> None:
        if not 0 < self.cap <= self.low_water <= self.budget:
            raise ValueError(f"cap {self.cap}, low_water {self.low_water} and budget {self.budget} must ascend from 1")


WINDOW = Limits()
"""A window of 16,384 tokens less 1,024 for the answer; a compaction goes down to its half."""


@dataclass(slots=True)
class Compactor:
    """One session's state: what has been cleared, what has become a summary. `size` counts a message's tokens."""

    size: Callable[[Message], int]
    limits: Limits = WINDOW
    num_compactions: int = 0
    _seen: list[Message] = field(default_factory=list)
    _shown: list[Message] = field(default_factory=list)
    _num_dropped: int = 0  # messages behind the first that stand in the summary

    def prompt(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages of the next turn's prompt; a history that does not go on from the last one starts anew."""
        if list(messages[: len(self._seen)]) != self._seen:
            self._seen, self._shown, self._num_dropped = [], [], 0
        self._shown += [self._capped(message) for message in messages[len(self._seen) :]]
        self._seen = list(messages)
        if self._total() > self.limits.budget:
            self._compact()
            self.num_compactions += 1
        return self._prompt()

    def _prompt(self) -> tuple[Message, ...]:
        return *self._head(self._num_dropped), *self._shown[1 + self._num_dropped :]

    def _head(self, num_dropped: int) -> tuple[Message, ...]:
        if not num_dropped:
            return (self._shown[0],)
        return self._shown[0], self._capped(_summary(self._seen[1 : 1 + num_dropped]))

    def _total(self) -> int:
        return sum(map(self.size, self._prompt()))

    def _compact(self) -> None:
        self._clear(self.limits.low_water, spared=self._newest_results())
        if self._total() > self.limits.low_water:
            self._drop()
        if self._total() > self.limits.budget:
            self._clear(self.limits.budget, spared={len(self._shown) - 1})
        while self._total() > self.limits.budget and self._num_dropped < len(self._shown) - 2:
            self._num_dropped += 1  # only where messages are as long as they may be

    def _newest_results(self) -> set[int]:
        results = [place for place, message in enumerate(self._shown) if message.role == "tool"]
        return set(results[-KEPT_RESULTS:])

    def _clear(self, goal: int, spared: set[int]) -> None:
        """Clear results, oldest first, until the prompt is down to `goal` tokens."""
        total = self._total()
        for place in range(1 + self._num_dropped, len(self._shown)):
            if total <= goal:
                return
            message = self._shown[place]
            cleared = replace(message, text=CLEARED, path="")
            saved = self.size(message) - self.size(cleared)
            if message.role == "tool" and place not in spared and saved > 0:
                self._shown[place] = cleared
                total -= saved

    def _drop(self) -> None:
        """Have the fewest of the oldest messages become the summary that bring the prompt down to `low_water`.

        What is kept begins with a message of the user or of the assistant; a result never stands without its call.
        """
        sizes = [self.size(message) for message in self._shown]
        kept = sum(sizes[1 + self._num_dropped :])
        for dropped in range(self._num_dropped, len(self._shown) - 1):
            first = 1 + dropped
            if self._shown[first].role != "tool":
                self._num_dropped = dropped
                if kept + sum(map(self.size, self._head(dropped))) <= self.limits.low_water:
                    return
            kept -= sizes[first]

    def _capped(self, message: Message) -> Message:
        """The head and the tail of a message that is too long."""
        text, share = message.text, 1.0
        while (size := self.size(message)) > self.limits.cap:
            share *= 0.98 * self.limits.cap / size
            kept = int(share * len(text))
            head, tail = int(_HEAD_SHARE * kept), kept - int(_HEAD_SHARE * kept)
            left_out = LEFT_OUT.format(len(text) - kept)
            message = replace(message, text=text[:head] + left_out + text[len(text) - tail :])
        return message


def _summary(messages: Sequence[Message]) -> Message:
    """What stands for messages that are left out."""
    asked = [" ".join(message.text.split())[:REQUEST_CHARS] for message in messages if message.role == "user"]
    paths = list(dict.fromkeys(message.path for message in reversed(messages) if message.path))
    lines = [f"[{len(messages)} earlier messages of this conversation are left out. In short:]"]
    lines += ["The user asked, oldest first:", *(f"- {text}" for text in asked[-MOST_REQUESTS:])] if asked else []
    lines += ["Files read, newest first:", *(f"- {path}" for path in paths[:MOST_PATHS])] if paths else []
    return Message("user", "\n".join(lines))
