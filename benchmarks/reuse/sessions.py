"""Recorded sessions as the benchmark replays them: before each answer, the messages that the model was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runtime.doctor.transcripts import SUFFIXES, RecordedSession, ToolCall, read_session
from agent_runtime.doctor.transcripts import RecordedMessage as Recorded
from agent_runtime.doctor.transcripts import RecordedTurn as RecordedTurn
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


def load(path: Path) -> Sessions:
    """Read the session in a file, or all in a folder; raises BadFile where there is none."""
    if not path.exists():
        raise BadFile(f"{path}: no such file or folder")
    if not path.is_dir():
        return Sessions((_session(path),), {})
    sessions = []
    skipped: dict[str, list[Path]] = {}
    for file in sorted(found for found in path.rglob("*") if found.is_file()):
        try:
            sessions.append(_session(file))
        except BadFile as error:
            why = str(error).removeprefix(str(file)).lstrip(",: ")
            skipped.setdefault(why, []).append(file)
    if not sessions:
        raise BadFile(f"{path} holds no session ({', '.join(SUFFIXES)})")
    return Sessions(tuple(sessions), skipped)


def _session(file: Path) -> Session:
    if not file.name.endswith(SUFFIXES):
        raise BadFile(f"{file} is no session by its name")
    recorded = read_session(file)
    return Session(recorded.name, tuple(_turns(recorded)), recorded.turns)


def _turns(session: RecordedSession) -> Iterator[Turn]:
    """The turns, whose messages are mostly those of the turn before and some more: only those are made."""
    before: Sequence[Recorded] = ()
    made: list[Message] = []
    for turn in session.turns:
        same = 0
        while same < min(len(before), len(turn.messages)) and before[same] is turn.messages[same]:
            same += 1
        made, before = made[:same], turn.messages
        for place in range(same, len(turn.messages)):
            made.append(_message(turn.messages, place))
        answer = None if turn.answer is None else Message("assistant", _text(turn.answer))
        yield Turn(_with_system(made, turn.tools), answer)


def _with_system(messages: Sequence[Message], tools: Sequence[Any]) -> tuple[Message, ...]:
    """With what comes first in a prompt: the system prompt, and the tools where they stand apart."""
    has_own = bool(messages) and messages[0].role == "system"
    text = messages[0].text if has_own else PREAMBLE
    if tools:
        text += "\n\n" + json.dumps(tools, ensure_ascii=False)
    return Message("system", text), *messages[has_own:]


def _message(messages: Sequence[Recorded], place: int) -> Message:
    """One message; where the model was given no tools, what follows an answer of SWE-agent's is a tool's result."""
    message = messages[place]
    text = _text(message)
    window = _WINDOW.search(text)
    if message.role == "tool":
        return Message("tool", text, window[1] if window else _path_read(messages, place))
    if message.role == "user" and window is not None and messages[place - 1].role == "assistant":
        return Message("tool", text, window[1])
    return Message(message.role, text)


def _path_read(messages: Sequence[Recorded], place: int) -> str:
    """The file that a tool's result shows: results follow the message with their calls, in the calls' order."""
    asked = place - 1
    while asked >= 0 and messages[asked].role == "tool":
        asked -= 1
    calls = messages[asked].tool_calls if asked >= 0 else ()
    number = place - asked - 1
    call = calls[number] if number < len(calls) else None
    is_read = call is not None and call.name == "read" and messages[place].tool in ("", call.name)
    return _path_in(call) if call is not None and is_read else ""


def _path_in(call: ToolCall) -> str:
    path = call.arguments.get("path") if isinstance(call.arguments, Mapping) else None
    return path if isinstance(path, str) else ""


def _text(message: Recorded) -> str:
    """The text with the calls of tools behind it, as Qwen's chat template writes them."""
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in message.tool_calls
    ]
    return "\n".join(part for part in (message.text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)) if part)
