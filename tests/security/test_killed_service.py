"""The service itself is killed while clients have it write several files: after its next start all are of one write."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.models import RealModel

HUNK = Path(sys.executable).with_name("hunk")
NUM_KILLS = 8
NUM_FILES = 6


@contextlib.contextmanager
def started(root: Path, cache: Path, model: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`hunk serve` in a process of its own, which is killed at the end, and its URL."""
    command = [HUNK, "serve", "--root", root, "--port", "0", "--no-watch", "--model", model]
    environ = os.environ | {"HUNK_CACHE": str(cache), "HUNK_CONFIG": ""}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        try:
            url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
            drain = threading.Thread(target=process.stderr.read)
            drain.start()
            yield url, process
        finally:
            process.kill()
            drain.join()


def edit(number: int) -> str:
    """An edit of all files, from one number to the next."""
    parts = [f"*** Update File: {index}.py\n-number = {number}\n+number = {number + 1}\n" for index in range(NUM_FILES)]
    return f"*** Begin Patch\n{''.join(parts)}*** End Patch\n"


def numbers(root: Path) -> set[int]:
    """Of all files; fails where one is torn."""
    texts = [path.read_text() for path in sorted(root.glob("*.py"))]
    assert len(texts) == NUM_FILES
    found = [re.fullmatch(r"number = (\d+)\n", text) for text in texts]
    return {int(each[1]) for each in found if each} if all(found) else {-1}


@pytest.mark.e2e
def test_a_service_that_is_killed_leaves_nothing_half_done_behind_its_next_start(
    tmp_path: Path, smollm2: RealModel
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for index in range(NUM_FILES):
        (root / f"{index}.py").write_text("number = 0\n")
    num_written = 0
    for _ in range(NUM_KILLS + 1):
        with started(root, tmp_path / "cache", smollm2.path) as (url, process):
            (number,) = numbers(root)
            assert number >= num_written >= 0
            assert not list(root.glob(".*.hunk"))
            # Killed in the middle of a write that it is asked for, be the machine slow or fast.
            last = number + random.randint(1, 8)
            killer = threading.Timer(random.uniform(0, 0.02), process.kill)
            with contextlib.suppress(httpx.HTTPError), httpx.Client(timeout=30) as client:
                while True:
                    if number == last:
                        killer.start()
                    answer = client.post(f"{url}/apply", json={"edit": edit(number), "write": True})
                    assert answer.status_code == 200, answer.text
                    number += 1
                    num_written = number
            killer.join()
        assert -1 not in numbers(root)
        time.sleep(0.05)
    assert num_written > NUM_KILLS
