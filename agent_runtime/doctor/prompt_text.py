"""A prompt as text, with the names of its parts where they are known: a plain file, a request's body, a turn."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_runtime.doctor.recorded import MAX_BYTES, Message, ToolCall, Turn, turn_of_request
from agent_runtime.errors import BadFile
from agent_runtime.files.limits import check_size

PartKind = Literal["text", "system", "tools", "message"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Characters [start, end) of a prompt; `path` names the file whose text it holds, where that is known."""

    kind: PartKind
    name: str
    start: int
    end: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt's text; its parts ascend and leave nothing out but what the layout puts between them.

    `tools` are those of a request, as they were written.
    """

    text: str
    parts: tuple[TextPart, ...]
    tools: tuple[Any, ...] = ()

    def part_at(self, place: int) -> TextPart:
        """The part that holds a character, or the one before it."""
        return self.parts[max(0, bisect_right([part.start for part in self.parts], place) - 1)]


def read_prompt(path: Path) -> PromptText:
    """A file with a prompt as text, or a chat request's body in JSON (`messages`, and maybe `tools`).

    Raises BadFile where it cannot be read as either.
    """
    data = _read(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not UTF-8 text (byte {error.start})") from None
    body = _request_body(text)
    if body is None:
        return PromptText(text, (TextPart("text", "", 0, len(text)),))
    try:
        return prompt_of_turn(turn_of_request(body))
    except ValueError as error:
        raise BadFile(f"{path} is JSON with `messages`, but no request: {error}") from error


def prompt_of_turn(turn: Turn) -> PromptText:
    """A turn as ChatML, the layout of the catalogue's models: the system's message, the tools in it, the messages.

    Other models' templates put other texts around the messages; what breaks a prefix is the same.
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
    paths = _paths(messages)
    for number, message in enumerate(messages[len(system) :], start=len(system) + 1):
        add(f"<|im_start|>{message.role}\n")
        add(_said(message), "message", f"message {number} ({message.role})", paths[number - 1])
        add("<|im_end|>\n")
    add("<|im_start|>assistant\n")
    return PromptText("".join(pieces), tuple(parts) or (TextPart("text", "", 0, length),), turn.tools)


def _said(message: Message) -> str:
    calls = [
        json.dumps({"name": call.name, "arguments": _plain(call)}, ensure_ascii=False) for call in message.tool_calls
    ]
    return "\n".join([*([message.text] if message.text or not calls else []), *calls])


def _plain(call: ToolCall) -> Any:
    return call.arguments if isinstance(call.arguments, str) else dict(call.arguments)


def _paths(messages: Iterable[Message]) -> list[str]:
    """For each message the file that a tool was asked for whose result it is, "" otherwise."""
    asked: list[str] = []
    paths = []
    for message in messages:
        if message.role == "tool":
            paths.append(asked.pop(0) if asked else "")
        else:
            asked = [_path_in(call) for call in message.tool_calls]
            paths.append("")
    return paths


def _path_in(call: ToolCall) -> str:
    if isinstance(call.arguments, str):
        return ""
    found = (call.arguments.get(name) for name in ("path", "file_path", "filePath", "filename", "file"))
    return next((path for path in found if isinstance(path, str)), "")


def _request_body(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and "messages" in body else None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from error
    check_size(len(data), str(path), MAX_BYTES)
    return data
