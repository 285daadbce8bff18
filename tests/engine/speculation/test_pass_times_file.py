"""Pass times outlive a start; what is not whole, or of something else, is not read and hinders nobody."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.speculation.step_times import FORMAT, StepTimes, StepTimesFile

TIMES = StepTimes({1: 0.02, 64: 0.1})


def kept_in(folder: Path) -> StepTimesFile:
    return StepTimesFile(folder / "times", "model", "machine")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert kept_in(tmp_path).read() is None
    kept_in(tmp_path).write(TIMES)
    read = kept_in(tmp_path).read()
    assert read is not None
    assert read.seconds == TIMES.seconds
    assert [each.suffix for each in (tmp_path / "times").iterdir()] == [".json"], "nothing half written is left"


def test_another_model_or_machine_has_another_file(tmp_path: Path) -> None:
    file = kept_in(tmp_path)
    file.write(TIMES)
    for other in (replace(file, model="other"), replace(file, machine="other")):
        assert other.read() is None
        other.path.write_bytes(file.path.read_bytes())
        assert other.read() is None, "it says whose it is"


def spoilt(**changes: Any) -> bytes:
    seconds = {str(rows): each for rows, each in TIMES.seconds.items()}
    whole = {"format": FORMAT, "model": "model", "machine": "machine", "seconds": seconds}
    return json.dumps(whole | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b"null",
        spoilt()[:-9],
        spoilt(format=FORMAT - 1),
        spoilt(seconds={}),
        spoilt(seconds={"1": 0.1}),
        spoilt(seconds=[0.1]),
        *(
            spoilt(seconds={str(rows): each for rows, each in (TIMES.seconds | {64: value}).items()})
            for value in (0, -1.0, "0.1", None, float("nan"), float("inf"), [])
        ),
    ],
)
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    file = kept_in(tmp_path)
    file.path.parent.mkdir()
    file.path.write_bytes(content)
    assert file.read() is None
    file.write(TIMES)
    assert file.read() is not None


def test_a_whole_file_of_that_shape_is_read(tmp_path: Path) -> None:
    """What the damaged ones differ from."""
    file = kept_in(tmp_path)
    file.path.parent.mkdir()
    file.path.write_bytes(spoilt())
    assert file.read() is not None


def test_a_folder_that_cannot_be_written_hinders_nobody(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("a file")
    kept_in(tmp_path).write(TIMES)
    assert kept_in(tmp_path).read() is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    file = kept_in(tmp_path)
    file.folder.mkdir()
    os.mkfifo(file.path)
    assert file.read() is None
    file.path.unlink()
    file.path.symlink_to("/dev/zero")
    assert file.read() is None
    file.path.unlink()
    file.path.write_bytes(b"[" * 100_000)
    assert file.read() is None
