"""A process that writes and undoes is killed at any moment: files are whole, and what is kept leads back exactly."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_runtime.errors import Stale
from agent_runtime.workspace.history import History
from agent_runtime.workspace.undo import undo_write
from agent_runtime.workspace.workspace import Workspace
from tests.agent_runtime.workspace.undoing_child import read_state

ROOT = Path(__file__).resolve().parents[3]
CHILD = "tests.agent_runtime.workspace.undoing_child"


def run_child(folder: Path, seed: int, seconds: float) -> list[list[dict[str, str]]]:
    """Run the child for some time and kill it; return the states before and after each step that it began."""
    command = [sys.executable, "-m", CHILD, str(folder), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        time.sleep(seconds)
        child.kill()
        lines += child.stdout.read().splitlines()
    return [json.loads(line) for line in lines if line.strip().endswith("]")]


@pytest.mark.parametrize("num_kills", [5, pytest.param(500, marks=pytest.mark.long)])
def test_a_killed_writer_leaves_files_whole_and_the_way_back(tmp_path: Path, num_kills: int) -> None:
    root, rng = tmp_path / "root", random.Random(num_kills)
    root.mkdir()
    num_undone = 0
    for seed in range(num_kills):
        steps = run_child(tmp_path, seed, rng.uniform(0.0, 0.03))
        history = History(tmp_path / "history")
        Workspace(root, tmp_path / "journals", search=True)  # finishes or undoes what was begun
        state = read_state(root)
        before, after = steps[-1]
        assert state in (before, after), seed
        assert not [path for path in root.rglob("*") if path.is_file() and path.name not in ("a.py", "b.py", "c.py")]
        for write in history.list_writes()[:4]:  # the newest may be one that was not made
            try:
                redo = undo_write(history, write, tmp_path / "journals")
            except Stale:
                assert read_state(root) == state
                continue
            num_undone += 1
            undone = read_state(root)
            for file in write.files:
                assert (undone.get(file.path) is None) == (file.before is None), seed
                assert file.before is None or history.read_bytes(file.before).decode() == undone[file.path], seed
            undo_write(history, redo, tmp_path / "journals")
            assert read_state(root) == state, seed
            break
    assert num_undone > num_kills // 2
