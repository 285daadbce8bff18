"""Options of `hunk apply` that only the model cares for: they reach it through a service, and bad ones are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent_runtime.errors import BadRequest
from tests.agent_runtime.in_process import hunk_here
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving

BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"


@pytest.fixture(scope="module")
def merger() -> ScriptedMerger:
    return ScriptedMerger("a = 3\nb = 2\n")


@pytest.fixture(scope="module")
def url(merger: ScriptedMerger) -> Iterator[str]:
    with serving(merger) as url:
        yield url


@pytest.fixture
def command(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "a.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "expected").write_bytes("\ufeffa = 3\r\n".encode())
    return ["apply", tmp_path / "a.py", "--edit", "-", "--mode", "model", "--json"]


def test_scope_decide_and_prediction_reach_the_model(
    merger: ScriptedMerger, url: str, command: list[str | Path], tmp_path: Path
) -> None:
    options = ["--scope", "file", "--decide", "score", "--prediction", tmp_path / "expected", "--url", url]
    done = hunk_here(*command, *options, stdin=BLOCK)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["merged"] == "a = 3\nb = 2\n"
    asked = merger.seen[-1]
    assert (asked.scope, asked.decide, asked.prediction) == ("file", "score", "\ufeffa = 3\r\n")
    hunk_here(*command, "--url", url, stdin=BLOCK)
    assert (merger.seen[-1].scope, merger.seen[-1].prediction) == ("auto", None)


def test_a_prediction_needs_its_file(tmp_path: Path) -> None:
    done = hunk_here("apply", "--edit", "-", "--root", tmp_path, "--prediction", tmp_path / "x", stdin=BLOCK)
    assert isinstance(done.exception, BadRequest)
    assert "give FILE" in str(done.exception)


@pytest.mark.parametrize(("option", "value"), [("--scope", "function"), ("--decide", "toss")])
def test_values_that_there_are_not_are_usage_errors(command: list[str | Path], option: str, value: str) -> None:
    done = hunk_here(*command, option, value, stdin=BLOCK)
    assert done.exit_code == 2
    assert value in done.output


def test_the_service_of_the_settings_is_asked_with_their_token(
    url: str, command: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'url = "{url}"\ntoken = "sesame"\ndtype = "float32"\nreuse = "turbo"\nmodel = "another"\n')
    monkeypatch.setenv("HUNK_CONFIG", str(file))
    sent: list[httpx.Request] = []
    send = httpx.Client.send
    monkeypatch.setattr(httpx.Client, "send", lambda self, request, **more: sent.append(request) or send(self, request))
    done = hunk_here(*command, stdin=BLOCK)
    assert done.exit_code == 0, done.output
    assert sent[-1].headers["authorization"] == "Bearer sesame"
    body = json.loads(sent[-1].content)
    assert (body["model"], body["reuse"]) == (None, None), "nobody asked on this command line: the service's own hold"
    file.write_text('url = "nonsense"\n')
    assert str(hunk_here(*command, stdin=BLOCK).exception).startswith(f"{file}:1 is 'nonsense'")
    file.write_text(f'url = "{url}"\ntoken = "open sesame"\n')
    fault = str(hunk_here(*command, stdin=BLOCK).exception)
    assert fault.startswith(f"{file}:2 is no token")
    assert "open" not in fault
