"""The surface of the SDK: both clients have the same methods, and docs/sdk.md names them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agent_runtime
from agent_runtime import client as sdk
from agent_runtime.client import (
    AsyncClient,
    AsyncItems,
    AsyncSession,
    AsyncStream,
    Client,
    Items,
    Retries,
    Session,
    Stream,
    Timeouts,
)
from agent_runtime.client.workspaces import AsyncClientWorkspaces, ClientWorkspaces
from tests.agent_runtime.client.conftest import Chatting
from tests.agent_runtime.serving import serving

PAIRS = [
    (Client, AsyncClient),
    (ClientWorkspaces, AsyncClientWorkspaces),
    (Session, AsyncSession),
    (Stream, AsyncStream),
    (Items, AsyncItems),
]


def public(cls: type) -> dict[str, Any]:
    """Public methods and properties; `close` is `aclose` where it must be awaited."""
    found = {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}
    return {"close" if name == "aclose" else name: member for name, member in found.items()}


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_clients_have_one_surface(blocking: type, asynchronous: type) -> None:
    ours, theirs = public(blocking), public(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        if not callable(method):
            assert type(method) is type(theirs[name]), name
            continue
        assert _parameters(method) == _parameters(theirs[name]), name
        assert _answer(method) == _answer(theirs[name]).replace("Async", ""), name


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_clients_are_made_alike(blocking: type, asynchronous: type) -> None:
    ours, theirs = (inspect.signature(cls).parameters for cls in (blocking, asynchronous))
    assert [*ours] == [*theirs]
    assert [one.default for one in ours.values()] == [one.default for one in theirs.values()]


def _parameters(method: Any) -> list[tuple[str, Any, Any, str]]:
    return [
        (one.name, one.kind, one.default, str(one.annotation)) for one in inspect.signature(method).parameters.values()
    ]


def _answer(method: Any) -> str:
    return str(inspect.signature(method).return_annotation)


def test_the_clients_are_imported_without_torch_and_what_else_only_a_service_needs() -> None:
    heavy = ("torch", "numpy", "tokenizers", "fastapi", "uvicorn", "pydantic", "tree_sitter")
    program = (
        f"from agent_runtime import Client, AsyncClient; import sys; print([m for m in {heavy} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_can_be_had_from_the_package() -> None:
    for name in agent_runtime.__all__:
        assert getattr(agent_runtime, name) is not None
        assert name in dir(agent_runtime)
    for name in sdk.__all__:
        assert getattr(sdk, name) is not None
    with pytest.raises(AttributeError, match="nosuch"):
        _ = agent_runtime.nosuch


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
