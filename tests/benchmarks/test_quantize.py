"""The quantisation benchmark: its measures are what they are called, and it prints every scheme."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks.quantize import COLUMNS, SCHEMES, Quality, main, measure_passes, measure_quality
from engine.decoder import Decoder
from engine.layers import Quantization
from tests.engine.tiny import tiny_config, tiny_parameters


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def decoder(scheme: Quantization | None = None) -> Decoder:
    return Decoder(tiny_parameters(tiny_config(ffn_size=64, max_positions=1024)), scheme)


SCHEME: dict[str, Quantization] = {"int8": "int8", "int4": "int4"}


def tiny_model(name: str, scheme: str) -> Any:
    tokenizer = SimpleNamespace(encode=lambda text: [ord(character) % 48 for character in text])
    return SimpleNamespace(
        name=name,
        text=SimpleNamespace(tokenizer=tokenizer),
        engine=SimpleNamespace(model=decoder(SCHEME.get(scheme))),
    )


def test_divergence_agreement_and_perplexity_of_two_tokens() -> None:
    reference = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]).log()
    logits = torch.tensor([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]]).log() + 3.0
    quality = Quality()
    quality.add(reference, logits, torch.tensor([1, 2]))
    found = quality.summary()
    first = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert found["kl_mean"] == pytest.approx(first / 2, abs=1e-6)
    assert found["kl_p99"] == pytest.approx(0.99 * first, abs=1e-6)
    assert found["top1"] == 0.5
    assert found["perplexity"] == pytest.approx((0.5 * 0.1) ** -0.5)


def test_quality_is_of_every_position_against_the_first_decoder() -> None:
    decoders = [decoder(), decoder(), decoder("int4")]
    texts = [[index * 7 % 48 for index in range(150)], [3, 1, 4]]
    same, again, four_bits = measure_quality(decoders, texts)
    assert same.summary() == again.summary()
    assert same.summary()["kl_mean"] == 0.0
    assert same.summary()["top1"] == 1.0
    assert len(torch.cat(four_bits.kls)) == 149 + 2
    assert four_bits.summary()["kl_mean"] > 0.001
    ids = torch.tensor(texts[1])
    logits = decoders[2].logits(decoders[2].forward(ids[:-1], decoders[2].new_caches(1, 3)))
    assert torch.cat(four_bits.surprisals)[-2:].mean() == pytest.approx(float(F.cross_entropy(logits, ids[1:])))


def test_a_pass_is_timed_for_each_decoder_and_size() -> None:
    seconds = measure_passes([decoder(), decoder("int8")], (1, 5), 2)
    assert [len(times) for times in seconds] == [2, 2]
    assert all(0 < time < math.inf for times in seconds for time in times)


def test_the_table_and_the_json_name_every_scheme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "benchmarks.quantize.measure_passes", lambda decoders, sizes, _: [[1.0] * 5, [0.5] * 5, *[[2.0] * 5] * 3]
    )
    text = tmp_path / "a.py"
    text.write_text("def f(x):\n    return x\n")
    monkeypatch.setattr("benchmarks.quantize._load", tiny_model)
    assert main(["--model", "tiny", "--text", str(text), "--json", str(tmp_path / "out.json")]) == 0
    table = capsys.readouterr().out
    assert all(head in table for head in COLUMNS)
    raw = json.loads((tmp_path / "out.json").read_text())
    assert [row["scheme"] for row in raw["rows"]] == [*SCHEMES]
    assert raw["summary"]["int8 KV_kl_mean"] > 0
    assert raw["summary"]["int8_speed_1"] == 2.0
    assert raw["summary"]["none_kl_mean"] == 0.0
    assert raw["summary"]["int8_kl_mean"] > 0
    assert raw["summary"]["int4_weights_gb"] < raw["summary"]["int8_weights_gb"] < raw["summary"]["none_weights_gb"]


@pytest.mark.parametrize(("arguments", "said"), [(["--tokens", "1"], "give 2 or more"), (["--tokens", "x"], "invalid")])
def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err
