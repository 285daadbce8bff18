"""Reads recorded agent sessions: what a model was sent, turn by turn, whichever tool wrote it down."""

from __future__ import annotations

import ast
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from agent_runtime.errors import BadFile
from agent_runtime.files.limits import check_size

SUFFIXES = (".jsonl", ".jsonl.gz", ".traj", ".traj.gz")
MAX_BYTES = 1 << 30
"""Of a session, unpacked."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool's name, and its arguments: an object, or text where they were no JSON."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `role` is "system", "user", "assistant" or "tool"; `tool` names the tool that a result is of."""

    role: str
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model was sent, and what it answered; `tools` are as they were written down, often left out."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()
    answer: Message | None = None


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A session by its name, turns in order."""

    name: str
    turns: Sequence[Turn]


class _Prefixes(Sequence[Turn]):
    """The turns of a history that only grows: each is what stands before an answer. Made when they are asked for."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = tuple(messages)
        self._answers = [place for place, message in enumerate(messages) if place and message.role == "assistant"]

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, number: int) -> Turn: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Turn]: ...

    def __getitem__(self, number: int | slice) -> Turn | Sequence[Turn]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        place = self._answers[number]
        return Turn(self._messages[:place], answer=self._messages[place])


def session_files(path: Path) -> list[Path]:
    """The file, or the files of a folder that may hold sessions by their names, sorted; raises BadFile without one."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
    if not found:
        raise BadFile(f"{path} holds no sessions ({', '.join(SUFFIXES)})")
    return found


def read_session(path: Path) -> RecordedSession:
    """The session in a file; raises BadFile where it cannot be read or holds none.

    Three shapes are known: the records of pi's coding agent (a JSON object a line, `type` and `message`), trajectories
    of SWE-agent (one object with `history`), and lines that are messages (`role`, `content`) or, for clients whose
    history is not append-only, whole requests (`messages`, `tools`).
    """
    text = _read_text(path)
    turns = _turns(path, text)
    if not turns:
        raise BadFile(f"{path} holds no turn of an agent session")
    return RecordedSession(path.name, turns)


def turn_of_request(body: Mapping[str, Any]) -> Turn:
    """A chat request's body (`messages`, and maybe `tools`) as a turn; raises ValueError where it is none."""
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("`messages` is not a list of objects")
    if tools is not None and not isinstance(tools, list):
        raise ValueError("`tools` is not a list")
    made = [_message(message) for message in messages]
    system = body.get("system")  # beside the messages, as Anthropic has it
    if system:
        made.insert(0, Message("system", _text(system)))
    return Turn(tuple(made), tuple(tools or ()))


def _turns(path: Path, text: str) -> Sequence[Turn]:
    if path.name.removesuffix(".gz").endswith(".traj"):
        whole = _parsed(path, text, 1)
        history = whole.get("history")
        if not isinstance(history, list):
            raise BadFile(f"{path} is not a trajectory: it has no list `history`")
        return _Prefixes([_message(entry) for entry in history if isinstance(entry, dict)])
    # Not str.splitlines: JSON may hold U+2028 as it is.
    rows = [_parsed(path, line, number) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if any("messages" in row for row in rows):
        try:
            return tuple(turn_of_request(row) for row in rows if "messages" in row)
        except ValueError as error:
            raise BadFile(f"{path} holds a request that cannot be read: {error}") from error
    return _Prefixes(list(_messages(rows)))


def _messages(rows: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """Messages among records; what a broken off request left empty is left out."""
    for row in rows:
        record = row.get("message") if row.get("type") == "message" else row
        if isinstance(record, dict) and "role" in record:
            message = _message(record)
            if message.text or message.tool_calls or message.role != "assistant":
                yield message


def _message(entry: Mapping[str, Any]) -> Message:
    role = str(entry.get("role", "user"))
    content = entry.get("content")
    calls = [_pi_call(part) for part in content if _is_call(part)] if isinstance(content, list) else []
    calls += [_openai_call(call) for call in _listed(entry.get("tool_calls"))]
    tool = str(entry.get("toolName") or entry.get("name") or "")
    return Message("tool" if role == "toolResult" else role, _text(content), tuple(calls), tool)


def _text(content: Any) -> str:
    """All text of a message; pictures and the like stand as their type."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    return "".join(_part_text(part) for part in content if not _is_call(part))


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text", part.get("thinking"))
    if text is None and "content" in part:  # a tool's result in a message of Anthropic's
        return _text(part["content"])
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def _is_call(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("toolCall", "tool_use")


def _pi_call(part: Mapping[str, Any]) -> ToolCall:
    return ToolCall(str(part.get("name", "")), _arguments(part.get("arguments", part.get("input"))))


def _openai_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ToolCall("", json.dumps(call, ensure_ascii=False, default=str))
    return ToolCall(str(function.get("name", "")), _arguments(function.get("arguments")))


def _arguments(value: Any) -> Mapping[str, Any] | str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    """Tool calls are a list, in trajectories a list as Python prints it."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return []
    return value if isinstance(value, list) else []


def _parsed(path: Path, text: str, line: int) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}, line {line}: this is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadFile(f"{path}, line {line}: this is not a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    check_size(len(data), str(path), MAX_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not UTF-8 text (byte {error.start})") from error
