"""The examples of docs/repo_cache.md run in order, and the page names every option with its default."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from repo_cache.cache import RepoCache
from tests.models import RealModel

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "repo_cache.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)


def test_every_block_runs_behind_those_before_it(smollm2: RealModel, tmp_path: Path) -> None:
    assert len(BLOCKS) >= 5
    smollm2.tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "doc.py").write_text("\n".join(BLOCKS))
    done = subprocess.run(
        [sys.executable, "doc.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert re.fullmatch(r"1 file, \d+ tokens, \d+ spans", said[0])
    assert re.fullmatch(r"a\.py modified \d+ kept, 1 changed", said[1])
    assert re.fullmatch(r"\['b\.py'\] \d+ tokens encoded", said[2])
    assert said[3] == "['c.py']"
    assert "no-such-folder" in said[4]
    assert "no-such-file.py is not in the workspace" in said[5]


def test_the_defaults_are_those_that_it_names() -> None:
    actual = {
        parameter.name: parameter.default
        for parameter in inspect.signature(RepoCache.open).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    table = DOC.partition("## Options of `open`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `?([^|`]+)`? \|", table, re.MULTILINE)
    named = {name: value.strip() for names, value in rows for name in re.findall(r"`(\w+)`", names)}
    assert named.keys() == actual.keys()
    for name, value in named.items():
        if isinstance(actual[name], bool) or not isinstance(actual[name], int | float):
            assert value == str(actual[name])
        else:
            assert float(value) == actual[name]
