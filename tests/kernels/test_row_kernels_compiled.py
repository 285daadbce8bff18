"""The kernels of rows compile for cards that are not here: norm, gate and choice, with loads of 16 bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kernels.op import is_interpreting

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(is_interpreting(), reason="compiles, which the interpreter stands for")

TYPES = {
    **dict.fromkeys(("x", "delta", "weight", "out", "gate_up", "logits"), "*bf16"),
    **dict.fromkeys(("ids", "drawn", "row_starts", "words"), "*i32"),
    **dict.fromkeys(("values", "temperatures"), "*fp32"),
    **dict.fromkeys(("sums", "numbers"), "*fp64"),
    "draft": "*i64",
    "eps": "fp32",
}
"""Of arguments that are no int32."""

PLAIN = {"num_rows", "num_heads", "num_chunks", "eps"}
"""Numbers that are not known to be multiples of 16."""

WIDE_LOAD = "ld.global.v4.b32"


def ptx(kernel: Any, constants: Mapping[str, Any], capability: int, num_warps: int = 4) -> str:
    """As a launch compiles a kernel, without a card."""
    import triton
    from triton.backends.compiler import GPUTarget

    names = [*enumerate(kernel.arg_names)]
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "i32") for _, name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in names if name not in {*constants, *PLAIN}}
    source = triton.compiler.ASTSource(kernel, signature, constexprs=dict(constants), attrs=aligned)
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert found.asm["cubin"]
    return str(found.asm["ptx"])


def test_the_likeliest_are_found_by_wide_loads_some_of_them_ahead() -> None:
    from kernels.accept.kernel import top_two_kernel

    constants = {"PARTS": 64, "BLOCK": 1024}
    assert ptx(top_two_kernel, {**constants, "LOADS_AHEAD": 1}, 90).count(WIDE_LOAD) == 1
    assert "cp.async.cg.shared.global" in ptx(top_two_kernel, {**constants, "LOADS_AHEAD": 4}, 90)


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
def test_tokens_are_drawn_and_confirmed(capability: int) -> None:
    from kernels.accept import kernel

    chunks = {"PARTS": 64, "CHUNK": kernel.CHUNK, "LEAST": 1e-30}
    assert WIDE_LOAD in ptx(kernel.chunk_weights_kernel, chunks, capability)
    assert WIDE_LOAD in ptx(kernel.sample_kernel, {**chunks, "CHUNKS": 128}, capability)
    for draws, counts in ((False, False), (False, True), (True, True)):
        constants = {"PARTS": 64, "ROWS": 64, "DRAWS": draws, "COUNTS": counts}
        assert WIDE_LOAD in ptx(kernel.accept_kernel, constants, capability)


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
def test_norms_and_gates_move_16_bytes_at_once(capability: int) -> None:
    from kernels.rms_norm.kernel import rms_norm_kernel
    from kernels.swiglu.kernel import swiglu_kernel

    row = {"num_heads": 1, "x_head_stride": 3584, "out_head_stride": 3584, "weight_stride": 0, "SIZE": 3584}
    norm = ptx(rms_norm_kernel, {**row, "BLOCK_SIZE": 4096, "ROWS": 1, "ADDS": True}, capability, 16)
    assert (norm.count(WIDE_LOAD), norm.count("st.global.v4.b32")) == (3, 2)
    heads = ptx(rms_norm_kernel, {"SIZE": 128, "BLOCK_SIZE": 128, "ROWS": 16, "ADDS": False}, capability, 8)
    assert (heads.count(WIDE_LOAD), heads.count("st.global.v4.b32")) == (2, 1)
    gate = ptx(swiglu_kernel, {"BLOCK": 1024}, capability)
    assert (gate.count(WIDE_LOAD), gate.count("st.global.v4.b32")) == (2, 1)
