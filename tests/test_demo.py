"""`make demo` does what it says: a service, an edit by rule, one by the model, and the comparison of drafts."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.scripted_model import merge_of, write_script

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "examples" / "demo.py"
AS_IF_BESIDE = """
import runpy, sys
sys.executable, *sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CART = ROOT / "examples" / "shopping_cart.ts"


def merged_cart() -> str:
    """What the lazy snippet of the demo means: its body of `totalCents` in place of the old one."""
    method = re.compile(r"^  totalCents\(\): number \{\n.*?^  \}\n", re.DOTALL | re.MULTILINE)
    new = method.search((CART.parent / "shopping_cart.lazy.txt").read_text())
    assert new
    return method.sub(lambda _: new[0], CART.read_text())


def test_the_demo_merges_both_edits_and_ends_with_0(tmp_path: Path) -> None:
    """The demo starts the `hunk` beside its interpreter: here one whose model writes the merge."""
    script = write_script(tmp_path / "script.json", merge_of(merged_cart(), "reduce("))
    hunk = tmp_path / "hunk"
    arguments = shlex.join([sys.executable, "-m", "tests.scripted_model", str(script)])
    hunk.write_text(f'#!/bin/sh\nexec env PYTHONPATH={shlex.quote(str(ROOT))} {arguments} "$@"\n')
    hunk.chmod(0o755)
    command = [sys.executable, "-c", AS_IF_BESIDE, tmp_path / "python", DEMO, "--model", "smollm2-135m"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1. a SEARCH/REPLACE block" in ran.stdout
    assert re.search(r"copy draft, whole file +\d+\.\d tok/s", ran.stdout)
    assert re.search(r"ratio +\d+\.\d x", ran.stdout)


def test_the_demo_says_what_is_wrong_in_a_line() -> None:
    ran = subprocess.run([sys.executable, DEMO, "--model", "nosuch"], capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "nosuch" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
