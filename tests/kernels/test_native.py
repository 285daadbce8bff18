"""The kernels in C++: how they are compiled, kept and left out. What they compute: tests/engine/test_linear.py and
tests/kernels/test_attention.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.device import describe_build
from kernels import native
from kernels.attention import native as attention
from kernels.linear import (
    TILE,
    can_multiply,
    pack_weight,
    quantise_rows,
    quantise_rows_by_torch,
    split_terms,
    split_terms_by_torch,
)
from kernels.native import WITHOUT_BF16, WITHOUT_VNNI, time_in_turns

needs_kernel = pytest.mark.skipif(not can_multiply(torch.float32), reason="no kernel here: it needs Linux and g++")

PROGRAM = """
import torch
from kernels.linear import can_multiply
print(can_multiply(torch.float32), can_multiply(torch.bfloat16))
"""


def run(cache: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Ask another process, with an empty cache folder, which kernels it has."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=os.environ | {"HUNK_CACHE": str(cache)} | environ,
        capture_output=True,
        text=True,
        check=True,
    )


def compiled(cache: Path) -> list[Path]:
    return sorted((cache / "kernels" / "compiled").glob("*"))


@needs_kernel
def test_the_kernel_is_compiled_once_and_found_by_the_next_process(tmp_path: Path) -> None:
    assert run(tmp_path).stdout.startswith("True")
    (kept,) = compiled(tmp_path)
    before = kept.stat()
    assert before.st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert run(tmp_path).stdout.startswith("True")
    assert kept.stat().st_mtime_ns == before.st_mtime_ns


@needs_kernel
def test_a_kept_kernel_that_others_can_write_is_not_loaded(tmp_path: Path) -> None:
    run(tmp_path)
    (kept,) = compiled(tmp_path)
    kept.write_bytes(b"not a library")
    kept.chmod(0o666)
    assert run(tmp_path).stdout.startswith("True"), "it is compiled anew"
    assert kept.stat().st_mode & 0o777 == 0o600


@needs_kernel
def test_where_the_cache_cannot_be_written_it_is_compiled_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("in the way")
    assert run(tmp_path).stdout.startswith("True")


def test_without_a_compiler_torch_computes_and_the_log_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, CXX="/no/such/compiler")
    assert done.stdout == "False False\n"
    assert "no compiler /no/such/compiler" in done.stderr
    assert not compiled(tmp_path)


@needs_kernel
def test_a_compiler_that_fails_is_told_and_torch_computes(tmp_path: Path) -> None:
    done = run(tmp_path, CXX="false")
    assert done.stdout == "False False\n"
    assert "cannot be compiled; torch computes instead" in done.stderr


def test_the_digest_is_of_sources_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured with other kernels is measured anew (`engine.device.describe_build` has the digest)."""

    def compute() -> str:
        native._make_command.cache_clear()
        native.compute_digest.cache_clear()
        return native.compute_digest()

    changed = tmp_path / "block.h"
    changed.write_text(native.SOURCES[0].read_text() + "// changed\n")
    try:
        found = [compute()]
        with monkeypatch.context() as patch:
            patch.setattr(native, "SOURCES", (changed, *native.SOURCES[1:]))
            found.append(compute())
        with monkeypatch.context() as patch:
            patch.setattr(native, "OPTIONS", (*native.OPTIONS, "-O2"))
            found.append(compute())
        with monkeypatch.context() as patch:
            patch.setenv("CXX", "/no/such/compiler")
            found.append(compute())
    finally:
        compute()
    assert found[-1] == "none"
    assert len(set(found)) == (4 if found[0] != "none" else 1), "without a compiler all are alike"
    assert native.compute_digest() == found[0]
    assert found[0] in describe_build(torch.device("cpu"))


@needs_kernel
@pytest.mark.parametrize("isa", sorted(WITHOUT_BF16))
def test_a_lesser_instruction_set_has_no_bf16(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    options = native._list_target_options()
    assert "-mavx512bf16" not in options
    assert "-mavx512vnni" not in options or isa not in WITHOUT_VNNI


@needs_kernel
@given(st.integers(1, 150), st.sampled_from([2, 4, 34, 96]))
def test_weights_are_packed_as_torch_would(out_features: int, in_features: int) -> None:
    weight = torch.randn(out_features, in_features).bfloat16()
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -out_features % TILE))
    assert torch.equal(pack_weight(weight), padded.view(-1, TILE, in_features // 2, 2).transpose(1, 2))


@needs_kernel
@pytest.mark.parametrize("num_columns", [1, 31, 64, 1000])
def test_rows_are_quantised_as_torch_would(num_columns: int) -> None:
    sizes = torch.tensor([1.0, 0.0, 1e-38, 1e-40, 3e38, torch.nan, torch.inf, 1e-3])
    weight = torch.randn(3, 8, num_columns).mul(sizes[:, None]).nan_to_num(posinf=3e38).flatten(0, 1)
    weight[5, 0], weight[14, -1] = torch.nan, torch.inf
    weight = weight.bfloat16()
    (integers, scales, sums), (expected, own, _) = quantise_rows(weight), quantise_rows_by_torch(weight)
    is_finite = own.isfinite()
    assert torch.equal(scales[is_finite], own[is_finite])
    assert torch.equal(integers[is_finite], expected[is_finite])
    assert torch.equal(scales.isfinite(), is_finite)
    assert (~is_finite).any()
    assert torch.equal(sums, integers.sum(dim=1, dtype=torch.int32))
    assert torch.equal(quantise_rows(weight.float())[1].isfinite(), is_finite), "for other dtypes torch does it"


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step", [256, 128])
@pytest.mark.parametrize(("num_rows", "num_columns"), [(0, 8), (1, 1), (1, 1536), (7, 33), (90, 896)])
def test_activations_are_split_as_torch_would(num_rows: int, num_columns: int, step: int, dtype: torch.dtype) -> None:
    rows = torch.randn(num_rows, num_columns)
    rows[::3] *= 1e-30
    rows[1::5] = 0.0
    rows[2::4, -1] = 200.0
    rows = rows.to(dtype)
    (terms, scales), (expected, own) = split_terms(rows, step), split_terms_by_torch(rows.float(), step)
    assert torch.equal(scales, own)
    assert torch.equal(terms, expected)


@needs_kernel
@pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf])
def test_a_fault_in_activations_is_in_the_scale(fault: float) -> None:
    rows = torch.ones(3, 40)
    rows[1, 7] = fault
    assert split_terms(rows, 256)[1].isfinite().flatten().tolist() == [True, False, True]


@needs_kernel
def test_weights_are_packed_in_tiles_of_pairs() -> None:
    weight = torch.arange(66.0 * 4).view(66, 4).bfloat16()
    packed = pack_weight(weight)
    assert packed.shape == (2, 2, TILE, 2)
    for feature, first in ((0, 0), (63, 2), (65, 2)):
        pair = packed[feature // TILE, first // 2, feature % TILE]
        assert torch.equal(pair, weight[feature, first : first + 2])
    assert not packed[1, :, 2:].any(), "the last tile is filled with zeros"


def test_functions_are_timed_in_turns_and_the_first_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    clock = iter([float(at * at) for at in range(12)])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    seconds = time_in_turns([lambda: calls.append("a"), lambda: calls.append("b")], repeats=2)
    assert calls == ["a", "b"] * 3
    assert seconds == [9.0 - 4.0, 25.0 - 16.0]


@needs_kernel
@pytest.mark.parametrize(("ours_s", "is_ours"), [(1.25, True), (1.5, False)])
def test_in_bf16_our_attention_serves_unless_torchs_is_much_quicker(
    monkeypatch: pytest.MonkeyPatch, ours_s: float, is_ours: bool
) -> None:
    if attention._find_function(torch.bfloat16) is None:
        pytest.skip("our kernel in bf16 needs AVX512-BF16")
    monkeypatch.setattr(attention, "time_in_turns", lambda _: [ours_s, 1.0])
    attention.is_faster.cache_clear()
    try:
        assert attention.can_attend(torch.bfloat16, torch.bfloat16, 64) == is_ours
        assert attention.can_attend(torch.float32, torch.bfloat16, 64), "elsewhere bf16 keys would have to be converted"
    finally:
        attention.is_faster.cache_clear()
