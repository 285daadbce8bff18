"""Loading: the bf16 copy on disk gives what the GGUF file gives, and is only a convenience."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from agent_runtime.doctor.diagnosis import find_measured_speed
from agent_runtime.errors import BadRequest, CorruptModel, UnknownModel
from agent_runtime.llm.opener import find_draft_files, make_engine_config
from agent_runtime.models import loader
from agent_runtime.models.config import LoadOptions, ModelSettings, Quantize, find_entry
from agent_runtime.models.loader import CHOOSING, LoadedModel, check_range, load_model
from agent_runtime.models.progress import SilentProgress
from agent_runtime.models.store import (
    ModelFiles,
    ModelStore,
    find_copy,
    hash_file,
    is_sealed,
    load_cache_key,
    locate_copy,
    remove_damaged_copy,
    resolve,
    save_copy,
    seal_copy,
)
from agent_runtime.models.tokenizer import open_tokenizer, read_folder_tokenizer
from agent_runtime.wiring import open_model
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.errors import WeightsError
from engine.tensor_parallel import ShardDecoder
from engine.types import GenerationRequest
from engine.weights import LoraAdapter
from tests.engine.tiny import tiny_config, tiny_parameters
from tests.models import RealModel

TEXT = "def fibonacci(n):\n    "


@pytest.fixture(scope="module")
def files(smollm2: RealModel) -> ModelFiles:
    return resolve(smollm2.name, ModelStore(ModelSettings.from_env(os.environ).cache_dir))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, files: ModelFiles) -> Iterator[Path]:
    cache = tmp_path_factory.mktemp("cache")
    yield cache
    shutil.rmtree(cache)


@pytest.fixture(scope="module")
def from_gguf(files: ModelFiles, cache: Path) -> tuple[int, ...]:
    """What the model writes when it comes from the GGUF file; leaves a copy in `cache`."""
    assert not locate_copy(files, cache).exists()
    return written(load_model(files, cache, limits=EngineConfig(256)))


def written(loaded: LoadedModel) -> tuple[int, ...]:
    prompt = loaded.text.tokenizer.encode(TEXT)
    return loaded.engine.run(GenerationRequest(prompt=prompt, max_new_tokens=24)).token_ids


def test_the_copy_gives_what_the_file_gives(files: ModelFiles, cache: Path, from_gguf: tuple[int, ...]) -> None:
    assert (locate_copy(files, cache) / "model.safetensors").is_file()
    assert [path.name for path in (cache / "converted").iterdir()] == [locate_copy(files, cache).name]
    again = load_model(files, cache, limits=EngineConfig(256))
    assert written(again) == from_gguf
    assert again.text.stop_ids == {
        again.text.tokenizer.get_control_id(name) for name in ("<|im_end|>", "<|endoftext|>")
    }


def test_the_copy_is_a_model_folder_like_any_other(files: ModelFiles, cache: Path, from_gguf: tuple[int, ...]) -> None:
    folder = resolve(str(locate_copy(files, cache)), ModelStore(cache))
    assert folder.kind == "safetensors"
    assert written(load_model(folder, cache, limits=EngineConfig(256))) == from_gguf


def test_a_damaged_copy_costs_a_conversion_and_not_the_start(
    files: ModelFiles, cache: Path, from_gguf: tuple[int, ...]
) -> None:
    weights = locate_copy(files, cache) / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size // 2)
    assert written(load_model(files, cache, limits=EngineConfig(256))) == from_gguf
    assert weights.stat().st_size == size


def test_a_copy_that_was_changed_is_made_anew(files: ModelFiles, cache: Path, from_gguf: tuple[int, ...]) -> None:
    """Four bytes of the weights, the size and time as they were."""
    weights = locate_copy(files, cache) / "model.safetensors"
    whole, state = hash_file(weights), weights.stat()
    with weights.open("r+b") as file:
        file.seek(state.st_size // 2)
        file.write(b"\x7f\x7f\x7f\x7f")
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert written(load_model(files, cache, limits=EngineConfig(256))) == from_gguf
    assert hash_file(weights) == whole


def test_no_copy_is_made_of_a_file_that_is_not_the_catalogues(files: ModelFiles, tmp_path: Path) -> None:
    """`ready` goes by size and time: a copy of a damaged file would stay behind its mending."""
    with pytest.raises(CorruptModel, match="is damaged"):
        load_model(replace(files, sha256="0" * 64), tmp_path, limits=EngineConfig(256))
    assert not (tmp_path / "converted").exists()


def byte_level() -> Tokenizer:
    """One token for each byte."""
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sealed(tmp_path: Path) -> tuple[Path, ModelFiles]:
    """A copy that was sealed with the key b"key", and what it was made of."""
    folder = tmp_path / "copy"
    folder.mkdir()
    (tmp_path / "model.gguf").write_bytes(b"source")
    (folder / "model.safetensors").write_bytes(b"weights")
    files = ModelFiles("gguf", tmp_path / "model.gguf", "model")
    seal_copy(folder, files.path, hash_file(files.path), b"key")
    return folder, files


def test_a_seal_tells_its_source_its_files_and_its_key(tmp_path: Path) -> None:
    folder, files = sealed(tmp_path)
    assert is_sealed(folder, files, b"key")
    assert is_sealed(folder, replace(files, sha256=hash_file(files.path)), b"key")
    assert not is_sealed(folder, replace(files, sha256="0" * 64), b"key")
    assert not is_sealed(folder, files, b"another key"), "who lacks the key cannot make a copy"
    weights = folder / "model.safetensors"
    weights.write_bytes(b"weights")
    assert is_sealed(folder, files, b"key"), "touched, and the same bytes"
    for damage in (lambda: weights.write_bytes(b"Weights"), lambda: (folder / "more").touch(), weights.unlink):
        shutil.copytree(folder, tmp_path / "kept")
        damage()
        assert not is_sealed(folder, files, b"key")
        shutil.rmtree(folder)
        (tmp_path / "kept").rename(folder)
        assert is_sealed(folder, files, b"key")
    files.path.write_bytes(b"Source")
    assert not is_sealed(folder, files, b"key"), "made of another file"


def test_to_verify_a_copy_is_to_hash_it_whatever_its_times_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.models.store._read_stamp", lambda _: [0])
    (tmp_path / "model.gguf").write_bytes(b"source")
    files, cache = ModelFiles("gguf", tmp_path / "model.gguf", "model"), tmp_path / "cache"
    copy = locate_copy(files, cache)

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"weights")
        seal_copy(folder, files.path, hash_file(files.path), load_cache_key(cache))

    save_copy(copy, 1, write)
    assert {path.stat().st_mode & 0o777 for path in (copy, copy.parent)} == {0o700}
    assert not remove_damaged_copy(files, cache)
    assert find_copy(files, cache) == copy
    (copy / "model.safetensors").write_bytes(b"Weights")
    assert remove_damaged_copy(files, cache)
    assert not copy.exists()


def test_a_tokenizer_config_that_is_nested_too_deep_is_one_clear_error(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(CorruptModel, match="cannot read"):
        read_folder_tokenizer(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"mac": "", "content": ""}', b"[" * 100_000])
def test_a_damaged_seal_is_none(tmp_path: Path, damage: bytes) -> None:
    folder, files = sealed(tmp_path)
    (folder / "seal.json").write_bytes(damage)
    assert not is_sealed(folder, files, b"key")


def test_whoever_else_reads_a_copy_looks_at_its_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hunk doctor` takes its tokenizer, and looks up times by its weights."""
    source, cache, asked = tmp_path / "model.gguf", tmp_path / "cache", []
    source.write_bytes(b"GGUF and nothing more")
    files = resolve(str(source), ModelStore(cache))
    copy = locate_copy(files, cache)
    copy.mkdir(parents=True)
    byte_level().save(str(copy / "tokenizer.json"))
    seal_copy(copy, source, hash_file(source), load_cache_key(cache))
    (cache / "pass-times").mkdir()
    (cache / "pass-times" / "a.json").touch()
    monkeypatch.setattr("agent_runtime.doctor.diagnosis.find_fingerprint", lambda *sent: asked.append(sent[0]) or "00")
    settings = ModelSettings.from_env({"HUNK_CACHE": str(cache)})
    assert len(open_tokenizer(str(source), settings).encode("abc")) == 3
    find_measured_speed(str(source), settings)
    assert asked == [copy]
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + " ")
    with pytest.raises(CorruptModel):  # of the GGUF file itself
        open_tokenizer(str(source), settings)
    assert find_measured_speed(str(source), settings) is None
    assert asked == [copy]


def test_the_key_of_a_cache_folder_is_made_once_for_its_owner(tmp_path: Path) -> None:
    key = load_cache_key(tmp_path / "cache")
    assert len(key) == 32
    assert load_cache_key(tmp_path / "cache") == key != load_cache_key(tmp_path / "other")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"key"}
    assert (tmp_path / "cache" / "key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "cache" / "key").write_bytes(b"short")
    assert len(load_cache_key(tmp_path / "cache")) == 32
    (tmp_path / "file").touch()
    assert len(load_cache_key(tmp_path / "file")) == 32, "where none can be kept"


def test_without_room_or_leave_to_write_there_is_no_copy_and_no_error(
    files: ModelFiles, from_gguf: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    assert written(load_model(files, not_a_folder, limits=EngineConfig(256))) == from_gguf
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert written(load_model(files, tmp_path, limits=EngineConfig(256))) == from_gguf
    assert not list((tmp_path / "converted").iterdir())


def test_what_a_killed_start_left_behind_is_removed_in_time(tmp_path: Path) -> None:
    place = tmp_path / "converted" / "key"
    old, new = (place.with_name(f".building-{name}") for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    save_copy(place, 1, lambda folder: (folder / "file").touch())
    assert (place / "file").exists()
    assert not old.exists()
    assert new.exists(), "another process may be at work there"


def write_output_adapter(folder: Path) -> tuple[Tensor, Tensor]:
    """Write an adapter of a layer of SmolLM2; return its matrices, whose product counts twice."""
    random = torch.Generator().manual_seed(0)
    down, up = torch.randn(2, 576, generator=random), torch.randn(576, 2, generator=random)
    prefix = f"base_model.model.{ADAPTED}"
    save_file({f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    return down, up


ADAPTED = "model.layers.0.self_attn.o_proj"


def test_an_adapter_is_merged_with_the_files_own_precision_and_leaves_no_copy(
    smollm2: RealModel, cache: Path, from_gguf: tuple[int, ...], tmp_path: Path
) -> None:
    down, up = write_output_adapter(tmp_path)
    settings = ModelSettings(tmp_path / "cache")
    adapted = open_model(str(smollm2.path), settings, LoadOptions(context=256, adapter=tmp_path, quantize="none"))
    stored = smollm2.gguf.read(f"{ADAPTED}.weight")
    weights = adapted.engine.model.weights
    merged = weights.layers[0].attention_out(torch.eye(576, dtype=weights.dtype)).T.bfloat16()
    assert torch.equal(merged, (stored + 2.0 * (up @ down)).bfloat16())
    assert written(adapted) != from_gguf
    assert not (settings.cache_dir / "converted").exists()


def test_a_model_of_the_catalogue_has_its_own_adapter_for_readings(
    smollm2: RealModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, settings = tmp_path / smollm2.name, ModelSettings.from_env(os.environ)
    own.mkdir()
    write_output_adapter(own)
    monkeypatch.setattr(loader, "ADAPTERS", tmp_path)

    def load_with(name: str, adapter: Path | None = None) -> LoadedModel:
        return open_model(name, settings, LoadOptions(context=256, adapter=adapter))

    loaded, other = load_with(smollm2.name), load_with(str(smollm2.path))
    assert loaded.choosing_adapter == CHOOSING
    assert other.choosing_adapter is None, "another file may hold other weights"
    assert written(loaded) == written(other), "requests that do not name it are the bare model's"
    assert load_with(smollm2.name, own).choosing_adapter is None, "it was trained beside the bare model"
    (own / "adapter_config.json").write_text("{")
    with pytest.raises(CorruptModel, match=r"adapter_config\.json"):
        load_with(smollm2.name)


@pytest.mark.parametrize("folder", sorted(loader.ADAPTERS.iterdir()), ids=lambda folder: folder.name)
def test_a_shipped_adapter_is_small_and_named_after_a_model(folder: Path) -> None:
    find_entry(folder.name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20e6
    updates = LoraAdapter(folder).updates
    assert len(updates) == 7 * 16, "all projections of the upper 16 layers"
    assert all(update.up.isfinite().all() and update.up.any() for update in updates.values())


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_quantised_model_is_as_small_as_it_says_and_writes(
    smollm2: RealModel, files: ModelFiles, cache: Path, scheme: Quantize
) -> None:
    loaded = open_model(str(smollm2.path), ModelSettings(cache), LoadOptions(context=256, quantize=scheme))
    weights = loaded.engine.model.weights
    # 28.3 million weights in the LM head, in int8 either way; 106.2 million in the layers, int4 with 2 scales for 32
    num_bytes = {"int8": 28.3e6 + 106.2e6, "int4": 28.3e6 + 106.2e6 * (4 + 1) / 8}[scheme]
    assert weights.num_bytes == pytest.approx(num_bytes, rel=0.01)
    assert len(written(loaded)) == 24


def test_an_adapter_that_cannot_be_read_is_a_fault_of_the_model(smollm2: RealModel, tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"cannot be loaded: cannot read .*adapter_config\.json"):
        open_model(str(smollm2.path), ModelSettings(tmp_path), LoadOptions(adapter=tmp_path))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json"),
        ({"tokenizer_config.json": "[]"}, "not a JSON object"),
        ({"tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>"})}, "no chat template"),
        ({"tokenizer_config.json": json.dumps({"chat_template": "{% if %}"})}, "not valid Jinja"),
        ({"config.json": "{}"}, "architecture"),
        ({"tokenizer.json": "{}"}, "tokenizer.json"),
    ],
)
def test_a_folder_that_lacks_something_is_named(
    files: ModelFiles,
    cache: Path,
    from_gguf: tuple[int, ...],
    tmp_path: Path,
    damage: dict[str, str],
    message: str,
) -> None:
    for path in locate_copy(files, cache).iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name, text in damage.items():
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(text)
    with pytest.raises(CorruptModel, match=message):
        load_model(ModelFiles("safetensors", tmp_path, "damaged"), tmp_path, limits=EngineConfig(256))


def test_a_draft_model_is_loaded_beside_the_model(files: ModelFiles, cache: Path, from_gguf: tuple[int, ...]) -> None:
    loaded = load_model(files, cache, limits=EngineConfig(256), draft=files)
    assert loaded.draft_model is not None
    assert written(loaded) == from_gguf
    assert load_model(files, cache, limits=EngineConfig(256)).draft_model is None


def test_ranks_read_the_copy_and_answer_as_one(files: ModelFiles, cache: Path, from_gguf: tuple[int, ...]) -> None:
    threads = torch.get_num_threads()
    loaded = load_model(files, cache, limits=EngineConfig(256), tensor_parallel=3)  # of three KV heads
    assert isinstance(loaded.engine.model, ShardDecoder)
    assert loaded.engine.model.config.num_kv_heads == 1
    assert written(loaded) == from_gguf
    loaded.engine.close()
    torch.set_num_threads(threads)


def test_a_draft_model_with_another_tokenizer_is_refused(
    files: ModelFiles, cache: Path, from_gguf: tuple[int, ...], tmp_path: Path
) -> None:
    """Two tokens have each other's id."""
    for path in locate_copy(files, cache).iterdir():
        (tmp_path / path.name).symlink_to(path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[1000:1002]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    swapped = ModelFiles("safetensors", tmp_path, "swapped")
    with pytest.raises(BadRequest, match=r"swapped cannot draft for .*: it has another tokenizer"):
        load_model(files, cache, limits=EngineConfig(256), draft=swapped)


def test_a_draft_model_that_cannot_be_read_is_named(files: ModelFiles, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(CorruptModel, match="damaged cannot be loaded"):
        load_model(
            files, cache, limits=EngineConfig(256), draft=ModelFiles("gguf", tmp_path / "damaged.gguf", "damaged")
        )


def test_a_draft_model_that_is_not_there_is_refused_before_the_model_is_loaded(
    files: ModelFiles, tmp_path: Path
) -> None:
    settings = ModelSettings.from_env(os.environ)
    with pytest.raises(UnknownModel, match="'smaller' is neither a model"):
        open_model(files.name, settings, LoadOptions(context=256, draft_model="smaller"))
    without = LoadOptions(context=256, draft_model="none")
    assert find_draft_files(settings, without, SilentProgress()) is None


def test_a_model_that_float16_cannot_hold_is_refused_when_it_is_loaded() -> None:
    fits = tiny_parameters(tiny_config(), dtype=torch.float16)
    check_range(Decoder(fits), [1, 2, 3])
    overflows = tiny_parameters(tiny_config(), dtype=torch.float16)
    overflows.layer(0).down.fill_(6e4)
    with pytest.raises(WeightsError, match="take bfloat16"):
        check_range(Decoder(overflows), [1, 2, 3])


def test_a_card_has_larger_passes_unless_others_were_asked_for(tmp_path: Path) -> None:
    def limits(**options: Any) -> tuple[int, int]:
        config = make_engine_config(LoadOptions(**options), tmp_path).scheduler
        return config.max_batched_tokens, config.prefill_beside_decodes

    assert limits() == (512, 256)
    assert limits(device="cuda:1") == (4096, 1024)
    assert limits(device="cuda", max_batched_tokens=2048) == (2048, 1024)
    assert limits(prefill_beside_decodes=64) == (512, 64)
    with pytest.raises(BadRequest, match="raise the second or lower the first"):
        limits(max_batched_tokens=8)
