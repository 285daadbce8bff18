"""Reads prompts and recorded agent sessions as text with named parts."""

from __future__ import annotations

import ast
import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from agent_runtime.errors import BadFile
from agent_runtime.files import check_size

SUFFIXES = (".jsonl", ".jsonl.gz", ".traj", ".traj.gz")
MAX_BYTES = 1 << 30
"""Maximum size of a session, unpacked."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool's name, and its arguments: an object, or text where they were not JSON."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message. `role` is "system", "user", "assistant" or "tool"; `tool` names the tool of a result."""

    role: str
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool: str = ""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A request to the model and its answer; `tools` are as recorded, which is often not at all."""

    messages: tuple[RecordedMessage, ...]
    tools: tuple[Any, ...] = ()
    answer: RecordedMessage | None = None


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A session's name, and its turns in order."""

    name: str
    turns: Sequence[RecordedTurn]


class _GrowingHistory(Sequence[RecordedTurn]):
    """The turns of a history that only grows: each is the messages before an answer. Built when accessed."""

    def __init__(self, messages: Sequence[RecordedMessage]) -> None:
        self._messages = tuple(messages)
        self._answers = [
            position for position, message in enumerate(messages) if position and message.role == "assistant"
        ]

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, number: int) -> RecordedTurn: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[RecordedTurn]: ...

    def __getitem__(self, number: int | slice) -> RecordedTurn | Sequence[RecordedTurn]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        position = self._answers[number]
        return RecordedTurn(self._messages[:position], answer=self._messages[position])


def read_session(path: Path) -> RecordedSession:
    """Read the session in a file; raises BadFile where it cannot be read or holds none.

    Three formats are known: records of pi's coding agent (a JSON object a line, `type` and `message`), trajectories of
    SWE-agent (one object with `history`), and lines that are messages (`role`, `content`) or, for clients whose
    history is not append-only, whole requests (`messages`, `tools`).
    """
    text = _read_text(path)
    turns = _parse_turns(path, text)
    if not turns:
        raise BadFile(f"{path} holds no turn of an agent session")
    return RecordedSession(path.name, turns)


def parse_request(body: Mapping[str, Any]) -> RecordedTurn:
    """Parse a chat request's body (`messages`, and optional `tools`) as a turn; raises ValueError."""
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("`messages` is not a list of objects")
    if tools is not None and not isinstance(tools, list):
        raise ValueError("`tools` is not a list")
    made = [_parse_message(message) for message in messages]
    system = body.get("system")  # next to the messages in Anthropic's format
    if system:
        made.insert(0, RecordedMessage("system", _parse_text(system)))
    return RecordedTurn(tuple(made), tuple(tools or ()))


def _parse_turns(path: Path, text: str) -> Sequence[RecordedTurn]:
    if path.name.removesuffix(".gz").endswith(".traj"):
        whole = _parse_object(path, text, 1)
        history = whole.get("history")
        if not isinstance(history, list):
            raise BadFile(f"{path} is not a trajectory: it has no list `history`")
        return _GrowingHistory([_parse_message(entry) for entry in history if isinstance(entry, dict)])
    # Not str.splitlines: JSON may contain U+2028.
    rows = [_parse_object(path, line, number) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if any("messages" in row for row in rows):
        try:
            return tuple(parse_request(row) for row in rows if "messages" in row)
        except ValueError as error:
            raise BadFile(f"{path} holds a request that cannot be read: {error}") from error
    return _GrowingHistory(list(_parse_messages(rows)))


def _parse_messages(rows: Sequence[Mapping[str, Any]]) -> Iterator[RecordedMessage]:
    """Yield the messages among records; empty answers of cancelled requests are left out."""
    for row in rows:
        record = row.get("message") if row.get("type") == "message" else row
        if isinstance(record, dict) and "role" in record:
            message = _parse_message(record)
            if message.text or message.tool_calls or message.role != "assistant":
                yield message


def _parse_message(entry: Mapping[str, Any]) -> RecordedMessage:
    role = str(entry.get("role", "user"))
    content = entry.get("content")
    calls = [_parse_pi_call(part) for part in content if _is_call(part)] if isinstance(content, list) else []
    calls += [_parse_openai_call(call) for call in _parse_list(entry.get("tool_calls"))]
    tool = str(entry.get("toolName") or entry.get("name") or "")
    return RecordedMessage("tool" if role == "toolResult" else role, _parse_text(content), tuple(calls), tool)


def _parse_text(content: Any) -> str:
    """Return all text of a message; other parts, such as pictures, are replaced by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    return "".join(_parse_part(part) for part in content if not _is_call(part))


def _parse_part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text", part.get("thinking"))
    if text is None and "content" in part:  # a tool's result in Anthropic's format
        return _parse_text(part["content"])
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def _is_call(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("toolCall", "tool_use")


def _parse_pi_call(part: Mapping[str, Any]) -> ToolCall:
    return ToolCall(str(part.get("name", "")), _parse_arguments(part.get("arguments", part.get("input"))))


def _parse_openai_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ToolCall("", json.dumps(call, ensure_ascii=False, default=str))
    return ToolCall(str(function.get("name", "")), _parse_arguments(function.get("arguments")))


def _parse_arguments(value: Any) -> Mapping[str, Any] | str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return value if isinstance(value, dict) else {}


def _parse_list(value: Any) -> list[Any]:
    """Parse tool calls: a list, or in trajectories a list printed by Python."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return []
    return value if isinstance(value, list) else []


def _parse_object(path: Path, text: str, line: int) -> dict[str, Any]:
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


PartKind = Literal["text", "system", "tools", "message"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Characters [start, end) of a prompt; `path` is the file whose text it holds, where that is known."""

    kind: PartKind
    name: str
    start: int
    end: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text; `parts` ascend and cover all of it except the text that the template puts between them.

    tools: of a request, as they were written.
    """

    text: str
    parts: tuple[TextPart, ...]
    tools: tuple[Any, ...] = ()

    def find_part(self, position: int) -> TextPart:
        """Return the part that holds a character, or the last one before it."""
        return self.parts[max(0, bisect_right([part.start for part in self.parts], position) - 1)]


def read_prompt(path: Path) -> PromptText:
    """Read a prompt from a file: text, or a chat request's body in JSON (`messages`, and optional `tools`).

    Raises BadFile where it is neither.
    """
    text = _read_text(path)
    body = _parse_request_body(text)
    if body is None:
        return PromptText(text, (TextPart("text", "", 0, len(text)),))
    try:
        return render_prompt(parse_request(body))
    except ValueError as error:
        raise BadFile(f"{path} is JSON with `messages`, but no request: {error}") from error


def render_prompt(turn: RecordedTurn) -> PromptText:
    """Render a turn as ChatML, the template of the catalogue's models: system message with tools, then the messages.

    Other models' templates put other text around the messages; the same changes break a prefix.
    """
    pieces: list[str] = []
    parts: list[TextPart] = []
    length = 0

    def add(text: str, kind: PartKind | None = None, name: str = "", path: str = "") -> None:
        nonlocal length
        if kind is not None:
            parts.append(TextPart(kind, name, length, length + len(text), path))
        pieces.append(text)
        length += len(text)

    messages = list(turn.messages)
    system = [message.text for message in messages[:1] if message.role == "system"]
    if system or turn.tools:
        add("<|im_start|>system\n")
        add(system[0] if system else "", "system", "the system message")
        if turn.tools:
            add("\n\n# Tools\n")
            add("".join(f"{json.dumps(tool, ensure_ascii=False)}\n" for tool in turn.tools), "tools", "the tools")
        add("<|im_end|>\n")
    paths = _find_paths(messages)
    for number, message in enumerate(messages[len(system) :], start=len(system) + 1):
        add(f"<|im_start|>{message.role}\n")
        add(_render_message(message), "message", f"message {number} ({message.role})", paths[number - 1])
        add("<|im_end|>\n")
    add("<|im_start|>assistant\n")
    return PromptText("".join(pieces), tuple(parts) or (TextPart("text", "", 0, length),), turn.tools)


def _render_message(message: RecordedMessage) -> str:
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False, default=dict)
        for call in message.tool_calls
    ]
    return "\n".join([*([message.text] if message.text or not calls else []), *calls])


def _find_paths(messages: Iterable[RecordedMessage]) -> list[str]:
    """Return for each message the file that its tool call asked for, "" where it is no result of a file tool."""
    asked: list[str] = []
    paths = []
    for message in messages:
        if message.role == "tool":
            paths.append(asked.pop(0) if asked else "")
        else:
            asked = [_find_path(call) for call in message.tool_calls]
            paths.append("")
    return paths


def _find_path(call: ToolCall) -> str:
    if isinstance(call.arguments, str):
        return ""
    found = (call.arguments.get(name) for name in ("path", "file_path", "filePath", "filename", "file"))
    return next((path for path in found if isinstance(path, str)), "")


def _parse_request_body(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and "messages" in body else None


_HEADER = re.compile(
    r"""<(?:file|document|edited|source)\b[^>\n]*?(?:path|name|src|source)\s*=\s*["']([^"'\n]+)["']
    | ^\#{1,6}\s+(?:[Ff]ile:?\s+)?`?([\w./-]+\.\w{1,8})`?:?\s*$
    | ^(?:[Ff]ile|[Pp]ath)(?:\s+name)?:\s*`?([^\s`][^`\n]*?)`?\s*$
    | ^```\w*[ :]+(\S+\.\w{1,8})\s*$
    | ^`([\w./-]+\.\w{1,8})`:?\s*$
    | ^==>\s+(.+?)\s+<==$
    | ^\[File:\s+(\S+)[^\n]*$
    | ^(?:This\ is|Here\ is)\ the\ file\s+`([^`\n]+)`""",
    re.VERBOSE | re.MULTILINE,
)
"""Lines with which prompts name a file above its text."""

_CLOSED = re.compile(r"^(?:</(?:file|document|edited|source)>|```\s*|<\|im_end\|>)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A file's text at characters [start, end) of a prompt."""

    path: str
    start: int
    end: int


def find_file(prompt: PromptText, position: int, part: TextPart) -> FileSpan | None:
    """Find the file whose text holds a character; None where no line above names one or its text has ended."""
    if part.path and part.start <= position < part.end:
        return FileSpan(part.path, part.start, part.end)
    text = prompt.text
    heads = list(_HEADER.finditer(text, part.start, position))
    start = text.find("\n", heads[-1].end()) + 1 if heads else 0
    if not start or start > position:
        return None
    if text.startswith("\n```", start):
        start += 1
    if text.startswith("```", start):
        start = text.find("\n", start) + 1
    if not start or start > position or _CLOSED.search(text, start, position):
        return None
    closed = _CLOSED.search(text, position)
    return FileSpan(next(name for name in heads[-1].groups() if name), start, closed.start() if closed else part.end)
