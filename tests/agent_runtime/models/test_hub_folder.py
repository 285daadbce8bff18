"""A model that is a folder on the hub: real sockets, a stand-in for the hub, and the shapes of the real model."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from agent_runtime.cli.models import models
from agent_runtime.errors import CorruptModel, DownloadFailed, ModelUnavailable
from agent_runtime.models import config
from agent_runtime.models.config import HUB_MODELS, HubModel
from agent_runtime.models.hub_folder import describe_memory, list_files, pull_folder
from agent_runtime.models.sources import HubSource
from agent_runtime.models.store import ModelStore, resolve
from engine.families import parse_config
from engine.weights.memory import count_kv_bytes, estimate_weight_bytes
from tests.agent_runtime.models.conftest import FileServer

MODEL = HubModel("wide", "Wide", "this test", "MIT", "acme/wide", 100, HUB_MODELS[0].shape)
WEIGHTS = {
    "model-00001-of-00002.safetensors": random.Random(1).randbytes(200_000),
    "model-00002-of-00002.safetensors": random.Random(2).randbytes(150_000),
}
INDEX = {"weight_map": dict(zip("ab", WEIGHTS, strict=True))}
SMALL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": 1}',
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
}
INFO_PATH = "/api/models/acme/wide?blobs=true"


def describe(name: str, content: bytes) -> dict[str, object]:
    """A file as the hub lists it."""
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    row: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git}
    if name in WEIGHTS:
        row["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return row


@pytest.fixture
def wide_hub(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    files = WEIGHTS | SMALL
    listed = [describe(name, content) for name, content in (files | {"README.md": b"# wide"}).items()]
    server.files[INFO_PATH] = json.dumps({"id": "acme/wide", "sha": "0" * 40, "siblings": listed}).encode()
    for name, content in files.items():
        server.files[f"/acme/wide/resolve/main/{name}"] = content
    monkeypatch.setattr(config, "HUB_MODELS", (MODEL,))
    return server


def take(store: ModelStore, hub: FileServer) -> int:
    return pull_folder(MODEL, store, source=HubSource(hub.url)).fetched_bytes


def test_a_pulled_folder_is_what_the_hub_has_and_is_pulled_once(store: ModelStore, wide_hub: FileServer) -> None:
    assert take(store, wide_hub) == sum(map(len, (WEIGHTS | SMALL).values()))
    files = resolve("wide", store)
    assert (files.kind, files.path, files.name) == ("safetensors", store.folder(MODEL), "wide")
    for name, content in (WEIGHTS | SMALL).items():
        assert (files.path / name).read_bytes() == content
    assert not (files.path / "README.md").exists()
    assert take(store, wide_hub) == 0


def test_a_pull_that_breaks_off_goes_on_and_is_not_loaded_before_its_end(
    store: ModelStore, wide_hub: FileServer
) -> None:
    wide_hub.cut_after = [1000, 0]
    with pytest.raises(DownloadFailed, match="hunk models pull wide` goes on from there"):
        take(store, wide_hub)
    with pytest.raises(ModelUnavailable, match="wide is not on this machine: run `hunk models pull wide`"):
        resolve("wide", store)
    wide_hub.cut_after = []
    take(store, wide_hub)
    assert wide_hub.ranges[0] == "bytes=0-"
    assert "bytes=1000-" in wide_hub.ranges


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors"])
def test_another_file_than_the_hub_lists_is_refused(store: ModelStore, wide_hub: FileServer, name: str) -> None:
    wide_hub.files[f"/acme/wide/resolve/main/{name}"] = (WEIGHTS | SMALL)[name][:-1] + b"?"
    with pytest.raises(CorruptModel, match="pull again"):
        take(store, wide_hub)
    with pytest.raises(ModelUnavailable):
        resolve("wide", store)


def test_what_the_hub_does_not_have_is_one_error(store: ModelStore, wide_hub: FileServer) -> None:
    del wide_hub.files[INFO_PATH]
    with pytest.raises(DownloadFailed, match="wide cannot be had: "):
        take(store, wide_hub)
    wide_hub.files[INFO_PATH] = json.dumps({"id": "acme/wide", "siblings": []}).encode()
    with pytest.raises(DownloadFailed, match="acme/wide on the hub holds no safetensors"):
        take(store, wide_hub)
    with pytest.raises(DownloadFailed, match="wide cannot be had: "):
        pull_folder(MODEL, store, source=HubSource("http://127.0.0.1:1"))


@pytest.mark.parametrize(
    "name", ["../evil.safetensors", "sub/evil.safetensors", "/tmp/evil.safetensors", "a\\evil.safetensors"]
)
def test_a_file_that_the_hub_places_elsewhere_is_left_out(store: ModelStore, wide_hub: FileServer, name: str) -> None:
    listed = json.loads(wide_hub.files[INFO_PATH])
    listed["siblings"].append(describe(name, b"evil") | {"lfs": None})
    wide_hub.files[INFO_PATH] = json.dumps(listed).encode()
    wide_hub.files[f"/acme/wide/resolve/main/{name}"] = b"evil"
    assert {file.name for file in list_files(MODEL, HubSource(wide_hub.url))} == (WEIGHTS | SMALL).keys()
    take(store, wide_hub)
    assert not list(store.root.parent.rglob("*evil*"))


def test_a_folder_that_cannot_be_written_is_one_error(store: ModelStore, wide_hub: FileServer) -> None:
    store.root.mkdir(parents=True, exist_ok=True)
    (store.root / "models").write_text("a file in the way")
    with pytest.raises(DownloadFailed, match="cannot be written"):
        take(store, wide_hub)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(models, arguments)


def test_the_commands_know_it(store: ModelStore, wide_hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_CACHE", str(store.root))
    monkeypatch.setattr("agent_runtime.models.hub_folder.HubSource", lambda: HubSource(wide_hub.url))

    def get_state() -> str:
        return {row["name"]: row["state"] for row in json.loads(run("list", "--json").stdout)["models"]}["wide"]

    assert get_state() == "absent"
    assert isinstance(run("path", "wide").exception, ModelUnavailable)
    pulled = run("pull", "wide")
    assert pulled.stdout == f"{store.folder(MODEL)}\n"
    assert "wide takes 61.1 GB in bfloat16, 31.1 GB in int8 for its weights, and 98 MB for the keys" in pulled.stderr
    assert get_state() == "verified"
    assert run("path", "wide").stdout == run("verify", "wide").stdout == f"{store.folder(MODEL)}\n"
    shard = store.folder(MODEL) / "model-00001-of-00002.safetensors"
    shard.write_bytes(b"?" + shard.read_bytes()[1:])
    assert isinstance(run("verify", "wide").exception, CorruptModel)
    assert get_state() == "partial"
    assert json.loads(run("rm", "wide", "--json").stdout)["freed_bytes"] > 150_000
    assert get_state() == "absent"


@pytest.mark.parametrize("model", HUB_MODELS, ids=lambda model: model.name)
def test_the_size_of_a_hub_model_follows_from_its_shape(model: HubModel) -> None:
    shape = parse_config(model.shape)
    assert model.num_bytes == estimate_weight_bytes(shape, torch.bfloat16)
    assert count_kv_bytes(shape, torch.bfloat16) == 2 * 48 * 4 * 128 * 2
    assert f"{model.num_bytes / 1e9:.1f} GB in bfloat16" in describe_memory(model)
    assert model.name in config.list_names()


def test_a_model_may_not_be_added_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    refused = run("add", str(tmp_path / "m.gguf"), "--name", HUB_MODELS[0].name)
    assert "is taken" in str(refused.exception)
