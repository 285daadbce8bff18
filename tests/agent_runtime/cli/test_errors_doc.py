"""The examples of docs/errors.md are what the command prints."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.agent_runtime.cli.test_cli import HUNK

ROOT = Path(__file__).resolve().parents[3]
DOC = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```edit\n(.*?)^```\n+```console\n\$ hunk (.*?)\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("edit", "command", "printed"), EXAMPLES)
def test_the_example_is_printed_as_it_stands_there(edit: str, command: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "edit").write_text(edit)
    arguments = [str(tmp_path / "edit") if word == "EDIT" else word for word in shlex.split(command)]
    done = subprocess.run([HUNK, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == printed


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3
