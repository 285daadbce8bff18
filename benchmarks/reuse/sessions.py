"""Recorded sessions: the messages before each answer, kept within a budget of tokens.

Compaction does what coding agents do, with the numbers of a window of 16k tokens, and the same way each time. A message
over `cap` keeps its head and its tail, from the turn that it first appears in. Once a prompt exceeds `budget`:

1. the oldest tool results become a placeholder, the newest three excepted, until the prompt is down to `low_water`
   (Anthropic's context editing, Claude Code, Qwen Code and opencode clear a good part at once, too: each change in the
   middle of a prompt costs the cached prefix after it);
2. where that is not enough, the oldest messages become one summary: here what the user asked and which files were
   read, where pi, Codex, Claude Code and opencode have a model write it;
3. where the newest results alone are too long, they are cleared, too, oldest first, all but the last message.

What is compacted stays so. Between two compactions a prompt begins with the one before it and its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_runtime.doctor.transcripts import SUFFIXES, RecordedSession, RecordedTurn, ToolCall, read_session
from agent_runtime.doctor.transcripts import RecordedMessage as Recorded
from agent_runtime.errors import BadFile

PREAMBLE = """You are a coding agent that works in a terminal. You help with a software project by reading files, \
running commands, editing code and writing files.

Tools:
- read: {"path": string, "offset"?: number, "limit"?: number}. Read a file, or some of its lines.
- bash: {"command": string, "timeout"?: number}. Run a command and get its output.
- edit: {"path": string, "oldText": string, "newText": string}. Replace text that occurs exactly once in a file.
- write: {"path": string, "content": string}. Write a whole file.

Read a file before you edit it. Use edit for small changes and write for new files. Be brief, name the files that you \
work on, and do what you were asked and nothing else."""
"""Stands for the system prompt where none was recorded, as in pi's sessions: a tenth of the real one's length."""

_WINDOW = re.compile(r"\[File: (\S+) \(\d+ lines total\)\]")
"""What SWE-agent writes above the lines of a file that it shows."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `role` is that of a chat; `path` names the file whose text a tool's result holds, "" otherwise."""

    role: str
    text: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model was sent, a message of role `system` first, and its answer, where that was recorded."""

    messages: tuple[Message, ...]
    answer: Message | None


@dataclass(frozen=True, slots=True)
class Session:
    """One session by the name of its file; `recorded` are its turns as they were read, calls of tools apart."""

    name: str
    turns: tuple[Turn, ...]
    recorded: Sequence[RecordedTurn]


@dataclass(frozen=True, slots=True)
class Sessions:
    """What was read, and the files that hold no session, by why."""

    sessions: tuple[Session, ...]
    skipped: Mapping[str, Sequence[Path]]


def load_sessions(path: Path) -> Sessions:
    """Read the session in a file, or all in a folder; raises BadFile where there is none."""
    if not path.exists():
        raise BadFile(f"{path}: no such file or folder")
    if not path.is_dir():
        return Sessions((_read_session(path),), {})
    sessions = []
    skipped: dict[str, list[Path]] = {}
    for file in sorted(found for found in path.rglob("*") if found.is_file()):
        try:
            sessions.append(_read_session(file))
        except BadFile as error:
            why = str(error).removeprefix(str(file)).lstrip(",: ")
            skipped.setdefault(why, []).append(file)
    if not sessions:
        raise BadFile(f"{path} holds no session ({', '.join(SUFFIXES)})")
    return Sessions(tuple(sessions), skipped)


def _read_session(file: Path) -> Session:
    if not file.name.endswith(SUFFIXES):
        raise BadFile(f"{file} is no session by its name")
    recorded = read_session(file)
    return Session(recorded.name, tuple(_make_turns(recorded)), recorded.turns)


def _make_turns(session: RecordedSession) -> Iterator[Turn]:
    """Yield the turns, whose messages are mostly those of the turn before and some more: only those are made."""
    before: Sequence[Recorded] = ()
    made: list[Message] = []
    for turn in session.turns:
        same = 0
        while same < min(len(before), len(turn.messages)) and before[same] is turn.messages[same]:
            same += 1
        made, before = made[:same], turn.messages
        for place in range(same, len(turn.messages)):
            made.append(_make_message(turn.messages, place))
        answer = None if turn.answer is None else Message("assistant", _render_text(turn.answer))
        yield Turn(_prepend_system(made, turn.tools), answer)


def _prepend_system(messages: Sequence[Message], tools: Sequence[Any]) -> tuple[Message, ...]:
    """With what comes first in a prompt: the system prompt, and the tools where they stand apart."""
    has_own = bool(messages) and messages[0].role == "system"
    text = messages[0].text if has_own else PREAMBLE
    if tools:
        text += "\n\n" + json.dumps(tools, ensure_ascii=False)
    return Message("system", text), *messages[has_own:]


def _make_message(messages: Sequence[Recorded], place: int) -> Message:
    """One message; where the model was given no tools, what follows an answer of SWE-agent's is a tool's result."""
    message = messages[place]
    text = _render_text(message)
    window = _WINDOW.search(text)
    if message.role == "tool":
        return Message("tool", text, window[1] if window else _find_path_read(messages, place))
    if message.role == "user" and window is not None and messages[place - 1].role == "assistant":
        return Message("tool", text, window[1])
    return Message(message.role, text)


def _find_path_read(messages: Sequence[Recorded], place: int) -> str:
    """Return the file that a tool's result shows: results follow the message with their calls, in the calls' order."""
    asked = place - 1
    while asked >= 0 and messages[asked].role == "tool":
        asked -= 1
    calls = messages[asked].tool_calls if asked >= 0 else ()
    number = place - asked - 1
    call = calls[number] if number < len(calls) else None
    is_read = call is not None and call.name == "read" and messages[place].tool in ("", call.name)
    return _get_path(call) if call is not None and is_read else ""


def _get_path(call: ToolCall) -> str:
    path = call.arguments.get("path") if isinstance(call.arguments, Mapping) else None
    return path if isinstance(path, str) else ""


def _render_text(message: Recorded) -> str:
    """Return the text with the calls of tools after it, as Qwen's chat template writes them."""
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in message.tool_calls
    ]
    return "\n".join(part for part in (message.text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)) if part)


CLEARED = "[Old tool result content cleared]"
LEFT_OUT = "\n[... {} characters left out ...]\n"

KEPT_RESULTS = 3
"""The newest tool results that are cleared last; Anthropic's default."""

MOST_REQUESTS, REQUEST_CHARS, MOST_PATHS = 8, 160, 12
"""What of the user's messages and of the files read stands in a summary."""

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
    _num_dropped: int = 0  # messages after the first that stand in the summary

    def prompt(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages of the next turn's prompt; a history that does not go on from the last one starts anew."""
        if list(messages[: len(self._seen)]) != self._seen:
            self._seen, self._shown, self._num_dropped = [], [], 0
        self._shown += [self._cap(message) for message in messages[len(self._seen) :]]
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
        return self._shown[0], self._cap(_summarise(self._seen[1 : 1 + num_dropped]))

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

    def _cap(self, message: Message) -> Message:
        """Return the head and the tail of a message that is too long."""
        text, share = message.text, 1.0
        while (size := self.size(message)) > self.limits.cap:
            share *= 0.98 * self.limits.cap / size
            kept = int(share * len(text))
            head, tail = int(_HEAD_SHARE * kept), kept - int(_HEAD_SHARE * kept)
            left_out = LEFT_OUT.format(len(text) - kept)
            message = replace(message, text=text[:head] + left_out + text[len(text) - tail :])
        return message


def _summarise(messages: Sequence[Message]) -> Message:
    """Return what stands for messages that are left out."""
    asked = [" ".join(message.text.split())[:REQUEST_CHARS] for message in messages if message.role == "user"]
    paths = list(dict.fromkeys(message.path for message in reversed(messages) if message.path))
    lines = [f"[{len(messages)} earlier messages of this conversation are left out. In short:]"]
    lines += ["The user asked, oldest first:", *(f"- {text}" for text in asked[-MOST_REQUESTS:])] if asked else []
    lines += ["Files read, newest first:", *(f"- {path}" for path in paths[:MOST_PATHS])] if paths else []
    return Message("user", "\n".join(lines))
