"""What an agent is shown of a file: the lines asked for, as they are, in parts that add up to the whole."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.llm.model_slot import ModelOnDemand
from agent_runtime.mcp.backends import Backend, LocalBackend, make_local_applier
from agent_runtime.mcp.responses import MAX_READ_CHARACTERS, read_response
from tests.agent_runtime.scripted import ScriptedMerger


@pytest.fixture
def place(tmp_path: Path) -> Backend:
    return LocalBackend(tmp_path, make_local_applier(ModelOnDemand("scripted", ScriptedMerger)))


def read(place: Backend, start_line: int | None = None, end_line: int | None = None) -> dict[str, Any]:
    result = read_response(place.read("file"), start_line, end_line)
    assert not result.is_error
    answer: dict[str, Any] = result.structured_content
    shown, about = (content.text for content in result.content if content.type == "text")
    assert shown == answer["text"]
    assert answer["sha256"] in about
    assert (f"start_line {answer['last_line'] + 1}" in about) == answer["truncated"]
    return answer


@pytest.mark.parametrize(
    ("start_line", "end_line", "text"),
    [
        (None, None, "a\nb\nc\n"),
        (2, None, "b\nc\n"),
        (None, 1, "a\n"),
        (2, 2, "b\n"),
        (3, 99, "c\n"),
        (4, None, ""),
        (3, 1, ""),
    ],
)
def test_lines_of_a_file(
    place: Backend, tmp_path: Path, start_line: int | None, end_line: int | None, text: str
) -> None:
    (tmp_path / "file").write_bytes(b"a\nb\nc\n")
    answer = read(place, start_line, end_line)
    assert (answer["text"], answer["num_lines"], answer["truncated"]) == (text, 3, False)
    assert answer["sha256"] == sha256(b"a\nb\nc\n").hexdigest()


@pytest.mark.parametrize("text", ["a\r\nb", "a\r\nb\r\n", "\ufeffa\n", "", "\n", "ä\n", "a\rb\x0cc\u2028d"])
def test_line_ends_and_marks_stay_as_they_are(place: Backend, tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_bytes(text.encode())
    assert read(place)["text"] == text


def test_other_encodings_are_read_as_text(place: Backend, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("é\n".encode("utf-16"))
    answer = read(place)
    assert (answer["text"], answer["encoding"]) == ("\ufeffé\n", "utf-16-le")


@pytest.mark.parametrize("ending", ["\n", ""])
def test_a_long_file_is_read_in_parts_that_add_up(place: Backend, tmp_path: Path, ending: str) -> None:
    text = "\n".join(f"{number:06} {'x' * 90}" for number in range(6000)) + ending
    (tmp_path / "file").write_text(text)
    parts: list[str] = []
    line, more = 1, True
    while more:
        answer = read(place, line)
        parts.append(answer["text"])
        assert answer["first_line"] == line
        line, more = answer["last_line"] + 1, answer["truncated"]
    assert len(parts) == -(-len(text) // MAX_READ_CHARACTERS) == 3
    assert "".join(parts) == text
