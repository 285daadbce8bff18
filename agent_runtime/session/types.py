"""The values of a session: what reading a file tells, what an answer holds, what there is to see of it all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_runtime.context import HistoryMessage
from agent_runtime.types import ReuseName, Usage

FileState = Literal["new", "changed", "same", "gone"]
"""What a file is beside what the session had of it last; `gone`: it cannot be read any more, and is out of the context.
"""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """One file that was put into the context. `sha256` and `size` are of its bytes, `text` is there if it was asked
    for: the whole, BOM and line endings included, in `encoding`.
    """

    path: str
    state: FileState
    sha256: str
    size: int
    encoding: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SeenFile:
    """What became of one file of the context since the last question; `sha256` is "" where it is gone."""

    path: str
    state: FileState
    sha256: str


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """What the model answered to one question.

    finish_reason: `length` where the token limit or the context's end cut it. timings: milliseconds, `read_ms` to look
    at the files, `layout_ms` to lay the prompt out, the model's `prefill_ms` and `decode_ms`, `total_ms`. files: those
    of the context that are new, changed or gone since the last question. noted: those that stand as they were shown
    first, with notes on what changed behind them (`balanced`).
    """

    text: str
    finish_reason: Literal["stop", "length"]
    usage: Usage
    timings: dict[str, float]
    files: tuple[SeenFile, ...] = ()
    noted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionState:
    """What there is to see of a session. `usage` is of all that was asked and applied, `turns` of each question.

    prompt_tokens: of the last question's prompt; the next one's is longer by what is said and changed.
    """

    id: str
    workspace: str | None
    reuse: ReuseName
    files: tuple[SeenFile, ...]
    messages: tuple[HistoryMessage, ...]
    usage: Usage
    turns: tuple[Usage, ...] = field(default=())
    prompt_tokens: int = 0
