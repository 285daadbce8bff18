"""`hunk bench`: lists and runs the benchmarks of a checkout, and fails without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runtime.cli import bench
from agent_runtime.errors import BadRequest
from tests.agent_runtime.in_process import hunk_here

HUNK = Path(sys.executable).with_name("hunk")


def test_it_lists_what_can_be_run_with_what_it_measures() -> None:
    listed = json.loads(hunk_here("bench", "--json").stdout)["benchmarks"]
    what = {row["name"]: row["what"] for row in listed}
    assert {"apply", "copy", "edit", "engine", "forwards", "models", "reuse", "reuse.quality", "watch"} <= set(what)
    assert "copy.ours" not in what
    assert what["edit"] == "Measure how right and how fast the editor is on recorded edits"
    assert all(name in hunk_here("bench").stdout for name in what)


def test_it_runs_one_from_any_folder_with_its_own_arguments(tmp_path: Path) -> None:
    done = subprocess.run(
        [HUNK, "bench", "edit", "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--case-format" in done.stdout


def test_one_that_there_is_not() -> None:
    fault = hunk_here("bench", "edti").exception
    assert isinstance(fault, BadRequest)
    assert "did you mean edit?" in str(fault)


def test_elsewhere_than_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    for arguments in ([], ["edit"]):
        fault = hunk_here("bench", *arguments).exception
        assert isinstance(fault, BadRequest)
        assert "benchmarks run from a checkout" in str(fault)
        assert fault.exit_code == 2
