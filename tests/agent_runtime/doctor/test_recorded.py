"""Recorded sessions: three formats give the same turns, and other files are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.doctor.transcripts import RecordedMessage, ToolCall, read_session
from agent_runtime.errors import BadFile

CALL = {"type": "toolCall", "id": "1", "name": "read", "arguments": {"path": "a.py"}}
PI = [
    {"type": "session", "id": "x", "timestamp": "2025-11-20T23:33:50.805Z"},
    {"type": "message", "message": {"role": "user", "content": [{"type": "text", "text": "Look at a.py."}]}},
    {"type": "message", "message": {"role": "assistant", "content": []}},  # broken off
    {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}, CALL]}},
    {
        "type": "message",
        "message": {"role": "toolResult", "toolName": "read", "content": [{"type": "text", "text": "x = 1\u2028\n"}]},
    },
    {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": "One."}]}},
]
MESSAGES = (
    RecordedMessage("user", "Look at a.py."),
    RecordedMessage("assistant", "Yes.", (ToolCall("read", {"path": "a.py"}),)),
    RecordedMessage("tool", "x = 1\u2028\n", tool="read"),
)
OPENAI_CALL = {"function": {"name": "read", "arguments": '{"path": "a.py"}'}, "id": "1", "type": "function"}
OPENAI: list[dict[str, Any]] = [
    {"role": "user", "content": "Look at a.py."},
    {"role": "assistant", "content": "Yes.", "tool_calls": [OPENAI_CALL]},
    {"role": "tool", "name": "read", "content": "x = 1\u2028\n"},
    {"role": "assistant", "content": "One."},
]


def written(path: Path, rows: list[Any]) -> Path:
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_records_of_pi(tmp_path: Path, name: str) -> None:
    turns = read_session(written(tmp_path / name, PI)).turns
    assert [turn.messages for turn in turns] == [MESSAGES[:1], MESSAGES]
    assert [turn.answer for turn in turns] == [MESSAGES[1], RecordedMessage("assistant", "One.")]
    assert list(turns[-1:]) == [turns[1]]


def test_a_trajectory_with_calls_as_python_prints_them(tmp_path: Path) -> None:
    history = [OPENAI[0], {**OPENAI[1], "tool_calls": str([OPENAI_CALL])}, *OPENAI[2:]]
    turns = read_session(written(tmp_path / "a.traj.gz", [{"history": history, "trajectory": []}])).turns
    assert turns[-1].messages == MESSAGES


def test_lines_that_are_messages_or_requests(tmp_path: Path) -> None:
    assert read_session(written(tmp_path / "a.jsonl", OPENAI)).turns[-1].messages == MESSAGES
    tools = [{"type": "function", "function": {"name": "read"}}]
    requests = [{"messages": OPENAI[:3], "tools": tools}, {"messages": OPENAI[2:3], "system": "Be brief."}]
    first, second = read_session(written(tmp_path / "b.jsonl", requests)).turns
    assert (first.messages, first.tools) == (MESSAGES, tuple(tools))
    assert second.messages == (RecordedMessage("system", "Be brief."), MESSAGES[2])


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"type": "session"}\n', "no turn"),
        ("a.jsonl", b"{\n", "line 1"),
        ("a.jsonl", b"\n[1]\n", "line 2"),
        ("a.jsonl", b"\xff", "byte 0"),
        ("a.jsonl", b'{"messages": 1}', "`messages`"),
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b"x" * 1000)[:-9], "cannot be read"),
        ("a.traj", b"{}", "`history`"),
    ],
)
def test_what_is_no_session_says_so(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BadFile, match=said) as caught:
        read_session(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        read_session(tmp_path / "gone.jsonl")
