"""Looking at how far pip is must not fail while pip moves its files about."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from agent_runtime.models.sources import _measure_largest_file


def test_the_largest_file_is_found_however_deep(tmp_path: Path) -> None:
    assert _measure_largest_file(tmp_path) == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "wheel").write_bytes(b"x" * 1000)
    (tmp_path / "log").write_bytes(b"x" * 10)
    assert _measure_largest_file(tmp_path) == 1000


def test_folders_that_come_and_go_do_no_harm(tmp_path: Path) -> None:
    """Seen: a pull of 22 parts failed because pip removed its unpack folder while it was being listed."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for name in "abcdefgh":
                (tmp_path / name / "deep").mkdir(parents=True, exist_ok=True)
                (tmp_path / name / "deep" / "file").write_bytes(b"x")
            for name in "abcdefgh":
                shutil.rmtree(tmp_path / name)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert all(_measure_largest_file(tmp_path) in (0, 1) for _ in range(500))
    finally:
        stop.set()
        thread.join()
