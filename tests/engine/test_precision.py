"""The precision that a model computes in: what was asked, or what the machine is quick at."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from engine import precision
from engine.layers import Quantization
from engine.precision import (
    DtypeChoice,
    Precision,
    ProductTimes,
    QuantizeChoice,
    choose_precision,
    load_or_measure_products,
    measure_products,
)

CPU = torch.device("cpu")
B16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NATIVE = ProductTimes(bfloat16=0.51, float32=1.0, int8=0.57)
VNNI = ProductTimes(bfloat16=3.1, float32=1.0, int8=0.65)
AVX2 = ProductTimes(bfloat16=3.8, float32=1.0, int8=0.97)
NO_INT8 = ProductTimes(bfloat16=3.8, float32=1.0, int8=math.inf)


@pytest.mark.parametrize(
    ("times", "quantize", "activations", "scheme"),
    [
        (NATIVE, "auto", B16, None),
        (NATIVE, "none", B16, None),
        (NATIVE, "int8", B16, "int8"),
        (VNNI, "auto", F32, "int8"),
        (VNNI, "none", F32, None),
        (VNNI, "int4", F32, "int4"),
        (AVX2, "auto", F32, None),
        (AVX2, "int8", F32, "int8"),
        (NO_INT8, "auto", F32, None),
        (ProductTimes(bfloat16=1.0, float32=1.0, int8=0.5), "auto", F32, None),
    ],
)
def test_auto_follows_from_the_times(
    times: ProductTimes, quantize: QuantizeChoice, activations: torch.dtype, scheme: Quantization | None
) -> None:
    chosen = choose_precision("auto", quantize, CPU, lambda: times)
    assert (chosen.stored, chosen.activations, chosen.quantize) == (B16, activations, scheme)
    assert "64 rows take" in chosen.reason


@pytest.mark.parametrize(("dtype", "stored"), [("bfloat16", B16), ("float16", F16), ("float32", F32)])
@pytest.mark.parametrize(("quantize", "scheme"), [("auto", None), ("none", None), ("int8", "int8"), ("int4", "int4")])
def test_a_dtype_that_is_asked_for_is_taken_and_nothing_is_timed(
    dtype: DtypeChoice, stored: torch.dtype, quantize: QuantizeChoice, scheme: Quantization | None
) -> None:
    def refuse() -> ProductTimes:
        raise AssertionError("timed")

    assert choose_precision(dtype, quantize, CPU, refuse) == Precision(stored, stored, scheme)
    assert choose_precision("auto", "auto", torch.device("cuda"), refuse).stored == B16


def test_a_precision_is_described_in_words() -> None:
    assert Precision(B16, F32, "int8").describe() == "int8 weights, float32 activations, bfloat16 KV"
    assert Precision(B16, B16).describe() == "bfloat16 weights, bfloat16 activations, bfloat16 KV"


def test_this_machines_times_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "times"
    times = load_or_measure_products(folder)
    assert all(0.0 < each < math.inf for each in (times.bfloat16, times.float32))
    monkeypatch.setattr(precision, "measure_products", lambda: NO_INT8)
    assert load_or_measure_products(folder) == times
    (file,) = folder.iterdir()
    for damage in ("", "[]", '{"machine": "x"}', file.read_text()[:-9], file.read_text().replace("oneDNN", "other")):
        file.write_text(damage)
        assert load_or_measure_products(folder) == NO_INT8
    assert load_or_measure_products(folder) == NO_INT8, "an infinite time of int8 is kept, too"
    content = json.loads(file.read_text())
    monkeypatch.undo()
    for damaged in (-1.0, 0.0, math.inf, math.nan):
        file.write_text(json.dumps(content | {"seconds": content["seconds"] | {"float32": damaged}}))
        assert 0.0 < load_or_measure_products(folder).float32 < math.inf
    monkeypatch.setattr(precision, "measure_products", lambda: NO_INT8)
    assert load_or_measure_products(None) == NO_INT8


def test_without_a_folder_that_can_be_written_they_are_measured_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert load_or_measure_products(tmp_path / "file" / "times").float32 > 0.0


def test_the_int8_product_is_left_out_where_it_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "find_int8_step", lambda: None)
    assert measure_products().int8 == math.inf
