"""Options of the commands that only the model needs: they reach it, here or in a service; bad ones are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from agent_runtime.errors import BadRequest
from agent_runtime.models.config import LoadOptions, MergeOptions
from agent_runtime.request_context import LOCAL
from agent_runtime.workspace.registry import NOT_LOADED, NOT_WATCHED, WorkspaceRegistry
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


EDIT = "a = 1\n# ... existing code ...\n"
OPTIONS = [
    "--device",
    "cuda",
    "--dtype",
    "float16",
    "--quantize",
    "int4",
    "--adapter",
    "my-adapter",
    "--span-disk",
    "2",
    "--batch-invariant",
]


class Stopped(Exception):
    """Raised in place of loading a model."""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "a.py").write_text("a = 0\n")
    (tmp_path / "edit").write_text(EDIT)
    return ["apply", tmp_path / "a.py", "--edit", tmp_path / "edit", "--mode", "model"]


def test_apply_loads_the_model_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, arguments: list[str | Path]) -> None:
    asked: list[LoadOptions] = []

    def stop(name: str, settings: Any, options: LoadOptions, progress: Any) -> None:
        asked.append(options)
        raise Stopped("stopped")

    monkeypatch.setattr("agent_runtime.wiring.open_merger", stop)
    assert isinstance(hunk_here(*arguments).exception, Stopped)
    assert isinstance(hunk_here(*arguments, *OPTIONS).exception, Stopped)
    assert asked == [
        LoadOptions(kv_sequences=1),
        LoadOptions(
            "float16",
            adapter=Path("my-adapter"),
            quantize="int4",
            kv_sequences=1,
            batch_invariant=True,
            span_disk_gib=2.0,
            device="cuda",
        ),
    ]


def test_serve_loads_the_model_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[LoadOptions, MergeOptions]] = []
    roots: list[list[tuple[Path, str]]] = []

    def stop(
        name: str,
        settings: Any,
        options: LoadOptions,
        progress: Any,
        merging: MergeOptions,
        workspaces: WorkspaceRegistry,
    ) -> None:
        asked.append((options, merging))
        roots.append([(each.workspace.root, each.unavailable_reason) for each in workspaces.list_visible(LOCAL)])
        raise Stopped("stopped")

    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", stop)
    limits = ["--context", "300", "--max-num-seqs", "5", "--kv-gib", "0.5", "--deadline", "9", "--reuse", "fast"]
    limits += ["--span-memory", "0.25"]
    assert isinstance(hunk_here("serve").exception, Stopped)
    assert isinstance(hunk_here("serve", "--reuse", "turbo").exception, Stopped)
    assert isinstance(hunk_here("serve", "--root", tmp_path, *limits, *OPTIONS).exception, Stopped)
    assert isinstance(hunk_here("serve", "--root", tmp_path, "--no-watch", "--span-memory", "0").exception, Stopped)
    assert asked == [
        (LoadOptions(span_gib=0.25), MergeOptions()),
        (LoadOptions(span_gib=1.0), MergeOptions(reuse="turbo")),
        (
            LoadOptions("float16", 300, Path("my-adapter"), "int4", 5, 0.5, 2, True, 0.25, 2.0, "cuda"),
            MergeOptions(9.0, "fast"),
        ),
        (LoadOptions(), MergeOptions()),
    ]
    assert roots == [[], [], [(tmp_path, NOT_LOADED)], [(tmp_path, NOT_WATCHED)]]


def test_serve_refuses_folders_that_are_none() -> None:
    for options in (["--root", "no-such-folder"], ["--allow-root", "no-such-folder"]):
        done = hunk_here("serve", *options)
        assert isinstance(done.exception, BadRequest)
        assert "no-such-folder is not a folder" in str(done.exception)


@pytest.mark.parametrize("option", range(0, len(OPTIONS), 2))
def test_a_service_loads_its_model_itself(arguments: list[str | Path], option: int) -> None:
    done = hunk_here(*arguments, "--url", "http://127.0.0.1:9", *OPTIONS[option : option + 2])
    assert isinstance(done.exception, BadRequest)
    assert "give it to the service of --url when it is started" in str(done.exception)


@pytest.mark.parametrize(("option", "value"), [("--dtype", "float64"), ("--quantize", "int2")])
def test_what_there_is_not_is_a_usage_error(arguments: list[str | Path], option: str, value: str) -> None:
    done = hunk_here(*arguments, option, value)
    assert done.exit_code == 2
    assert value in done.output


@pytest.mark.parametrize("command", ["apply", "serve"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str | Path], command: str
) -> None:
    monkeypatch.setattr("agent_runtime.wiring.resolve", lambda *_: pytest.fail("no model is looked for"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    called = arguments if command == "apply" else [command]
    for device, answer in (("cuda", "leave the device out to run on the CPU"), ("tpu", "none of cpu, cuda and cuda:N")):
        done = hunk_here(*called, "--device", device)
        assert isinstance(done.exception, BadRequest)
        assert answer in str(done.exception)


def test_weights_in_fewer_bits_are_refused_on_a_card(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str | Path]
) -> None:
    monkeypatch.setattr("agent_runtime.wiring.resolve_device", torch.device)
    done = hunk_here(*arguments, "--device", "cuda", "--quantize", "int8")
    assert isinstance(done.exception, BadRequest)
    assert "quantize is 'int8', which is for CPUs, and the device is cuda" in str(done.exception)


def test_balanced_is_no_default_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", lambda *_: pytest.fail("nothing is loaded"))
    done = hunk_here("serve", "--reuse", "balanced")
    assert isinstance(done.exception, BadRequest)
    assert "use 'exact', or 'fast'" in str(done.exception)
