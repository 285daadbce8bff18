"""Values of a session: messages, files and their states, answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_runtime.types import ReuseName, Usage

FileState = Literal["new", "changed", "same", "gone"]
"""A file compared with its last version in the session. `gone`: it can no longer be read, and is not shown."""


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One message of the conversation; `role` is a role of the chat template: user, assistant or tool."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was put into the session.

    `sha256` and `size` are those of its bytes. `text` is the whole text in `encoding`, with its BOM and line endings;
    None unless it was asked for.
    """

    path: str
    state: FileState
    sha256: str
    size: int
    encoding: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file of the session compared with what the last question showed; `sha256` is "" if it is gone."""

    path: str
    state: FileState
    sha256: str


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The model's answer to one question.

    finish_reason: `length` if the token limit or the end of the context cut the answer. timings: milliseconds;
    `read_ms` for reading the files, `layout_ms` for laying out the prompt, `prefill_ms` and `decode_ms` of the model,
    `total_ms`. files: those that are new, changed or gone since the last question. noted: files that the prompt still
    shows in their first version, followed by notes on their changes (`balanced`).
    """

    text: str
    finish_reason: Literal["stop", "length"]
    usage: Usage
    timings: dict[str, float]
    files: tuple[SeenFile, ...] = ()
    noted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session as a client sees it. `usage` is that of all questions and edits, `turns` that of each question.

    prompt_tokens: length of the last question's prompt.
    """

    id: str
    workspace: str | None
    reuse: ReuseName
    files: tuple[SeenFile, ...]
    messages: tuple[HistoryMessage, ...]
    usage: Usage
    turns: tuple[Usage, ...] = field(default=())
    prompt_tokens: int = 0
