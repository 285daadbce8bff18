"""The snippets of docs/sdk.md run, and its tables name all methods and options."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runtime.client import Client, Retries, Session, Timeouts
from agent_runtime.client.workspaces import ClientWorkspaces
from tests.agent_runtime.client.conftest import Chatting
from tests.agent_runtime.serving import serving

DOC = (Path(__file__).resolve().parents[3] / "docs" / "sdk.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)


def test_every_snippet_runs(tmp_path: Path, chatting: Chatting, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    with serving(chatting("LIMIT = 20\n"), root) as url:
        monkeypatch.setenv("HUNK_URL", url)
        for number, snippet in enumerate(SNIPPETS):
            (root / "limits.py").write_text("LIMIT = 10\n")
            program = compile(snippet.replace("http://127.0.0.1:8311", url), f"snippet {number} of docs/sdk.md", "exec")
            exec(program, {"__name__": "__main__"})
    assert len(SNIPPETS) >= 9


def test_what_the_snippets_print_is_there(tmp_path: Path) -> None:
    first = SNIPPETS[0]
    with serving(None, tmp_path) as url:
        program = first.replace("http://127.0.0.1:8311", url)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("merged certain\n")
    assert "+LIMIT = 20" in ran.stdout


def test_every_public_method_is_named() -> None:
    table = DOC.partition("## All methods")[2]
    named = set(re.findall(r"\w+", table))
    for cls in (Client, Session, ClientWorkspaces):
        public = {name for name in vars(cls) if not name.startswith("_")} - {"close"}
        assert public <= named, public - named


def test_the_defaults_that_it_names_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+_s)` \| (\w+) \|", DOC, re.MULTILINE))
    assert rows == {
        field.name: "None" if field.default is None else f"{field.default:g}" for field in dataclasses.fields(Timeouts)
    }
    retries = Retries()
    assert f"below {retries.first_s:g} and {2 * retries.first_s:g} s" in DOC
    assert f"where that is over {retries.longest_retry_after_s:g} s" in DOC
    assert retries.times == 2
