"""`python examples/train_adapter` computes what the engine does, and learns what its examples say."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
import torch

from benchmarks.cases import DEFAULT_CASES
from engine.contiguous_cache import CacheView
from engine.decoder import Batch, Decoder, StoreOps
from engine.layers import Adapter, AdapterRows
from engine.weights import LoraAdapter, load, save_folder
from tests.engine.reuse.turns import random_ids
from tests.engine.tiny import FAMILIES, tiny_config, tiny_parameters
from tests.examples.programs import ROOT, load_program
from tests.models import RealModel

FIRST_LAYER = 1


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load_program("train_adapter")


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    save_folder(tiny_parameters(tiny_config()), tmp_path)
    return Decoder(load(tmp_path, torch.float32))


@pytest.fixture
def trainer(program: ModuleType, decoder: Decoder, tmp_path: Path) -> object:
    return program.Trainer(decoder, tmp_path, FIRST_LAYER)


def draw_texts(count: int) -> list[tuple[list[int], list[int]]]:
    """Prompts that begin alike, and answers."""
    random = Random(5)
    shared = random_ids(random, 12)
    return [(shared + random_ids(random, 9), random_ids(random, 10)) for _ in range(count)]


def test_upper_layers_compute_what_the_decoder_does(
    program: ModuleType, decoder: Decoder, trainer: object, tmp_path: Path
) -> None:
    reader = program.Reader(decoder, FIRST_LAYER, 64)
    for prompt, answer in draw_texts(3):
        reading = reader.read(prompt, answer)
        whole = decoder.forward(torch.tensor([*prompt, *answer[:-1]]), decoder.new_caches(1, 64))[-len(answer) :]
        with torch.no_grad():
            torch.testing.assert_close(trainer.layers(reading), whole, rtol=0.02, atol=0.02)  # KV are kept in bf16
        chosen = decoder.likeliest(whole).token_ids.tolist()
        misses = sum(own != right for own, right in zip(chosen, answer, strict=True))
        assert reading.count_misses() == misses
        assert trainer.count_misses(reading) == misses


def test_an_adapter_learns_its_examples_and_goes_on_where_it_stopped(
    program: ModuleType, decoder: Decoder, trainer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "RATE", 0.02)  # the model is tiny, and there are few steps
    reader, examples = program.Reader(decoder, FIRST_LAYER, 64), []
    for number, (prompt, answer) in enumerate(draw_texts(8)):
        reading = reader.read(prompt, answer)
        file = tmp_path / f"{number}.pt"
        program.write_whole(file, [getattr(reading, name) for name in program.Reading.__slots__])
        examples.append(program.Example(file, is_offered=False, num_tokens=len(answer)))
    before = sum(trainer.compute_loss(each.read()).item() for each in examples)
    assert [*trainer.train(examples, 6, tmp_path)] == [1, 2, 3, 4, 5, 6]
    after = sum(trainer.compute_loss(each.read()).item() for each in examples)
    assert after < 0.7 * before
    (tmp_path / "epoch-5.pt").unlink()
    (tmp_path / "epoch-6.pt").unlink()
    again = program.Trainer(decoder, tmp_path, FIRST_LAYER)
    assert [*again.train(examples, 6, tmp_path)] == [1, 2, 3, 4, 5, 6]
    for name, value in again.layers.state_dict().items():
        torch.testing.assert_close(value, trainer.layers.state_dict()[name])


@torch.inference_mode()
def test_the_engine_computes_what_was_trained(
    program: ModuleType, decoder: Decoder, trainer: object, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(4)
    for up in trainer.layers.up.values():
        up.copy_(0.1 * torch.randn(up.shape, generator=generator))
    program.save_adapter(trainer.layers, tmp_path / "adapter")
    adapter = Adapter(LoraAdapter(tmp_path / "adapter"), decoder.config, torch.float32, torch.device("cpu"))
    ((prompt, answer),) = draw_texts(1)
    reading = program.Reader(decoder, FIRST_LAYER, 64).read(prompt, answer)
    ids, start = [*prompt, *answer[:-1]], len(prompt) - 1
    batch = Batch.from_chunks(
        [(0, ids)], torch.device("cpu"), AdapterRows.from_sequences([(None, start), (adapter, len(answer))])
    )
    view = CacheView(decoder.new_caches(1, 64), 0, None, len(ids))
    hidden = decoder.run_layers(batch.token_ids, StoreOps(decoder, batch, view, decoder.scratch))[start:]
    torch.testing.assert_close(trainer.layers(reading), hidden, rtol=0.03, atol=0.03)
    bare = decoder.forward(torch.tensor(ids), decoder.new_caches(1, 64))[start:]
    assert (bare - hidden).abs().max() > 0.3, "the adapter must show"


def test_another_family_and_a_layer_that_is_not_there_are_refused(
    program: ModuleType, decoder: Decoder, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="--first-layer must be from 1 to"):
        program.Trainer(decoder, tmp_path, decoder.config.num_layers)
    folder = tmp_path / "qwen3"
    folder.mkdir()
    save_folder(tiny_parameters(tiny_config(**FAMILIES["qwen3"])), folder)
    with pytest.raises(ValueError, match="Qwen3ForCausalLM is no Qwen2 or Llama"):
        program.Trainer(Decoder(load(folder, torch.float32)), folder, FIRST_LAYER)


def test_a_folder_of_another_run_is_not_gone_on_with(program: ModuleType, tmp_path: Path) -> None:
    asked = argparse.Namespace(model="a", out=tmp_path, first_layer=8)
    program.check_begun(asked)
    program.check_begun(asked)
    with pytest.raises(ValueError, match="was begun with --model a --first-layer 8"):
        program.check_begun(argparse.Namespace(model="a", out=tmp_path, first_layer=9))


@pytest.mark.long
@pytest.mark.skipif(not (DEFAULT_CASES / "snippets").is_dir(), reason=f"{DEFAULT_CASES} is absent")
def test_one_command_reads_trains_and_counts(smollm2: RealModel, tmp_path: Path) -> None:
    counts = ["--examples", "8", "--tests", "2", "--epochs", "1", "--first-layer", "20"]
    command = [sys.executable, ROOT / "examples" / "train_adapter", "--model", smollm2.name, *counts, "--out", tmp_path]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        table = done.stdout[done.stdout.rindex("| epoch") :]
        assert len(re.findall(r"\|\s+2 \|", table)) == 2, "two tests each of the bare model and with the adapter"
    assert "answers read" not in done.stderr, "all was kept"
