"""What a user may call a model, and what is said of what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_runtime.errors import CorruptModel, ModelUnavailable, UnknownModel
from agent_runtime.models import config
from agent_runtime.models.store import INDEX_NAME, ModelFiles, ModelStore, resolve
from tests.agent_runtime.models.conftest import CONTENT, ENTRY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a safetensors model; nothing here reads what is in the files."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).touch()
    return folder


def test_catalogue_name(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CATALOGUE", (ENTRY,))
    with pytest.raises(ModelUnavailable, match="hunk models pull tiny"):
        resolve("tiny", store)
    store.folder(ENTRY).mkdir(parents=True)
    store.path(ENTRY).write_bytes(CONTENT)
    assert resolve("tiny", store) == ModelFiles("gguf", store.path(ENTRY), "tiny", ENTRY.sha256)
    assert store.state(ENTRY) == "verified"


def test_gguf_file(tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.Q4.gguf").write_bytes(CONTENT)
    expected = ModelFiles("gguf", tmp_path / "own.Q4.gguf", "own.Q4")
    assert resolve(str(tmp_path / "own.Q4.gguf"), store) == expected
    monkeypatch.chdir(tmp_path)
    assert resolve("own.Q4.gguf", store) == expected


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\3\4"])
def test_file_that_is_no_gguf(tmp_path: Path, store: ModelStore, content: bytes) -> None:
    (tmp_path / "own.gguf").write_bytes(content)
    with pytest.raises(CorruptModel, match="is not a GGUF file"):
        resolve(str(tmp_path / "own.gguf"), store)


def test_folder(folder: Path, store: ModelStore) -> None:
    assert resolve(str(folder), store) == ModelFiles("safetensors", folder, "my-model")


@pytest.mark.parametrize(
    ("removed", "named"),
    [("config.json", "config.json"), ("tokenizer.json", "tokenizer.json"), ("model.safetensors", r"\*\.safetensors")],
)
def test_folder_that_lacks_something(folder: Path, store: ModelStore, removed: str, named: str) -> None:
    (folder / removed).unlink()
    with pytest.raises(ModelUnavailable, match=f"lacks {named}"):
        resolve(str(folder), store)


def test_folder_with_an_index_needs_every_shard(folder: Path, store: ModelStore) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(ModelUnavailable, match=r"lacks model-2\.safetensors"):
        resolve(str(folder), store)
    (folder / "model-2.safetensors").touch()
    assert resolve(str(folder), store).kind == "safetensors"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 1}', "[" * 100_000])
def test_folder_with_a_broken_index(folder: Path, store: ModelStore, content: str) -> None:
    (folder / INDEX_NAME).write_text(content)
    with pytest.raises(CorruptModel, match="not an index"):
        resolve(str(folder), store)


@pytest.mark.parametrize("name", ["smolm2", "./models/smollm2"])
def test_anything_else_tells_the_nearest_name(store: ModelStore, name: str) -> None:
    with pytest.raises(UnknownModel, match="did you mean 'smollm2-135m'"):
        resolve(name, store)
