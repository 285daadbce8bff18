"""`make demo` does what it says: a service, an edit by rule, one by the model, and the comparison of drafts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
MODEL = "qwen2.5-coder-0.5b"


def test_the_demo_merges_both_edits_and_ends_with_0() -> None:
    ran = subprocess.run(
        [sys.executable, DEMO, "--model", MODEL], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1. a SEARCH/REPLACE block" in ran.stdout
    assert re.search(r"copy draft, whole file +\d+\.\d tok/s", ran.stdout)
    assert re.search(r"ratio +\d+\.\d x", ran.stdout)


def test_the_demo_says_what_is_wrong_in_a_line() -> None:
    ran = subprocess.run([sys.executable, DEMO, "--model", "nosuch"], capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "nosuch" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
