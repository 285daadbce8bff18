"""The catalogue, the settings of models, and the model store."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from agent_runtime.doctor.diagnosis import find_fingerprint
from agent_runtime.errors import BadRequest, CorruptModel, ModelUnavailable, UnknownModel
from agent_runtime.models import config
from agent_runtime.models.config import CATALOGUE, CatalogueEntry, ModelSettings, find_entry, get_session_reuse
from agent_runtime.models.store import INDEX_NAME, ModelFiles, ModelStore, ensure_verified, resolve, verify
from tests.agent_runtime.models.conftest import CONTENT, ENTRY


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_entry_is_consistent(entry: CatalogueEntry) -> None:
    num_parts = len(entry.registry_parts)
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert (num_parts - 1) * entry.part_bytes < entry.num_bytes <= num_parts * entry.part_bytes
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part) for part in entry.registry_parts)
    assert find_entry(entry.name) is entry


def test_names_and_files_are_unique() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len({entry.sha256 for entry in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("smolm2", "smollm2-135m"),
        ("SmolLM2-135M", "smollm2-135m"),
        ("qwen2.5-coder-1.5", "qwen2.5-coder-1.5b"),
        ("qwen-coder-0.5b", "qwen2.5-coder-0.5b"),
        ("qwen3-coder-30b", "qwen3-coder-30b-a3b"),
    ],
)
def test_unknown_name_tells_the_nearest(slip: str, meant: str) -> None:
    with pytest.raises(UnknownModel, match=f"did you mean '{meant}'"):
        find_entry(slip)


@pytest.mark.parametrize("name", ["xyz", ""])
def test_name_near_nothing_tells_them_all(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        find_entry(name)
    assert all(entry.name in str(caught.value) for entry in CATALOGUE)


def test_sessions_follow_changes_as_was_measured_for_the_model() -> None:
    assert get_session_reuse("qwen2.5-coder-0.5b") == "fast"
    assert get_session_reuse("models/of-somebody-else") == "exact"


# The environment names the folder of models and the sources; a bad value is an error.


def test_defaults_follow_the_xdg_specification(tmp_path: Path) -> None:
    assert ModelSettings.from_env({"XDG_CACHE_HOME": str(tmp_path)}) == ModelSettings(tmp_path / "hunk")
    assert ModelSettings.from_env({"XDG_CACHE_HOME": "relative"}) == ModelSettings.from_env({})
    assert ModelSettings.from_env({}).sources == ("hub", "registry")


def test_own_variables_win(tmp_path: Path) -> None:
    environ = {"HUNK_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/x", "HUNK_MODEL_SOURCES": "registry, hub"}
    assert ModelSettings.from_env(environ) == ModelSettings(tmp_path, ("registry", "hub"))


@pytest.mark.parametrize("value", ["", "mirror", "hub,hub", "hub,mirror", " , "])
def test_bad_sources_stop(value: str) -> None:
    with pytest.raises(BadRequest, match=r"HUNK_MODEL_SOURCES.*hub, registry") as caught:
        ModelSettings.from_env({"HUNK_MODEL_SOURCES": value})
    assert caught.value.field == "HUNK_MODEL_SOURCES"


def test_a_prompt_form_is_one_that_there_is() -> None:
    assert ModelSettings.from_env({}).prompt_form is None, "the catalogue decides"
    assert ModelSettings.from_env({"HUNK_PROMPT_FORM": "tags"}).prompt_form == "tags"
    with pytest.raises(BadRequest, match=r"HUNK_PROMPT_FORM is 'tag': give one of tags, ") as caught:
        ModelSettings.from_env({"HUNK_PROMPT_FORM": "tag"})
    assert caught.value.field == "HUNK_PROMPT_FORM"


def test_cache_that_is_no_folder_stops(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for value in (str(file), ""):
        with pytest.raises(BadRequest, match="HUNK_CACHE"):
            ModelSettings.from_env({"HUNK_CACHE": value})


# Names and paths of models, and the errors for others.


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


# States of a model's file; `verify` hashes it in any state.


@pytest.fixture
def pulled(store: ModelStore) -> ModelStore:
    store.folder(ENTRY).mkdir(parents=True)
    store.path(ENTRY).write_bytes(CONTENT)
    return store


def test_states(store: ModelStore) -> None:
    assert store.state(ENTRY) == "absent"
    store.folder(ENTRY).mkdir(parents=True)
    store.partial_path(ENTRY).write_bytes(CONTENT[:9])
    assert store.state(ENTRY) == "partial"
    store.partial_path(ENTRY).write_bytes(CONTENT)
    store.partial_path(ENTRY).rename(store.path(ENTRY))
    assert store.state(ENTRY) == "present"
    assert verify(ENTRY, store) == store.path(ENTRY)
    assert store.state(ENTRY) == "verified"
    store.record_path(ENTRY).write_text("not json")
    assert store.state(ENTRY) == "present"


def test_absent_model_tells_how_to_have_it(store: ModelStore) -> None:
    for check in (ensure_verified, verify):
        with pytest.raises(ModelUnavailable, match="run `hunk models pull tiny`"):
            check(ENTRY, store)


def test_changed_file_is_noticed(pulled: ModelStore) -> None:
    ensure_verified(ENTRY, pulled)
    pulled.path(ENTRY).write_bytes(CONTENT[:-1] + b"\0")
    with pytest.raises(CorruptModel, match=r"is damaged.*`hunk models pull tiny` replaces it"):
        ensure_verified(ENTRY, pulled)


def test_verify_hashes_even_where_size_and_time_are_right(pulled: ModelStore) -> None:
    verify(ENTRY, pulled)
    before = pulled.path(ENTRY).stat()
    pulled.path(ENTRY).write_bytes(CONTENT[:-1] + b"\0")
    os.utime(pulled.path(ENTRY), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ensure_verified(ENTRY, pulled)  # a gigabyte is not hashed at every start
    with pytest.raises(CorruptModel):
        verify(ENTRY, pulled)
    with pytest.raises(CorruptModel):
        ensure_verified(ENTRY, pulled)


# A stored fingerprint is that of the weights; changed weights are read again.


class Weights:
    """What reading them gives, and how often they were read."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.num_read = 0

    def read(self) -> str:
        self.num_read += 1
        return self.fingerprint


@pytest.fixture
def fingerprint_folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "model"


def test_weights_are_read_once_until_they_change(fingerprint_folder: Path, tmp_path: Path) -> None:
    weights = Weights("aa")
    assert [find_fingerprint(fingerprint_folder, "bf16", tmp_path / "cache", weights.read) for _ in range(3)] == [
        "aa"
    ] * 3
    assert weights.num_read == 1
    (fingerprint_folder / "model.safetensors").write_bytes(b"other weights")
    weights.fingerprint = "bb"
    assert [find_fingerprint(fingerprint_folder, "bf16", tmp_path / "cache", weights.read) for _ in range(2)] == [
        "bb"
    ] * 2
    assert weights.num_read == 2
    other = tmp_path / "other"
    fingerprint_folder.rename(other)
    weights.fingerprint = "cc"
    assert find_fingerprint(other, "bf16", tmp_path / "cache", weights.read) == "cc"
    weights.fingerprint = "dd"
    assert find_fingerprint(other, "float32", tmp_path / "cache", weights.read) == "dd", "in another precision"


@pytest.mark.parametrize("damage", [b"", b"no hex", b"\xff"])
def test_a_damaged_one_is_computed_again(fingerprint_folder: Path, tmp_path: Path, damage: bytes) -> None:
    weights = Weights("aa")
    find_fingerprint(fingerprint_folder, "bf16", tmp_path / "cache", weights.read)
    (kept,) = (tmp_path / "cache" / "fingerprints").iterdir()
    kept.write_bytes(damage)
    assert find_fingerprint(fingerprint_folder, "bf16", tmp_path / "cache", weights.read) == "aa"
    assert weights.num_read == 2
    assert kept.read_bytes() == b"aa"


def test_without_a_cache_to_write_to_it_is_computed(fingerprint_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    assert find_fingerprint(fingerprint_folder, "bf16", tmp_path / "cache", Weights("aa").read) == "aa"
