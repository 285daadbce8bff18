"""What writes, places and moves keys and values compiles for cards that are not here, with the widest loads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from kernels.op import Op, Shape, is_interpreting
from kernels.rope_write.op import OP as ROPE_WRITE
from kernels.span_placement.op import OP as SPAN_PLACEMENT

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(is_interpreting(), reason="compiles, which the interpreter stands for")

SLOTS = ("slots", "record_slots", "source_slots", "target_slots", "addresses")
NUMBERS = ("num_tokens", "num_layers")


def ptx_of(kernel: Any, constants: Mapping[str, Any], capability: int, **options: int) -> str:
    """As a launch compiles it for bfloat16, without a card."""
    import triton
    from triton.backends.compiler import GPUTarget

    types = dict.fromkeys(SLOTS, "*i64") | dict.fromkeys(NUMBERS, "i32") | {"cos": "*fp32", "sin": "*fp32"}
    signature = {name: "constexpr" if name in constants else types.get(name, "*bf16") for name in kernel.arg_names}
    aligned = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
    }
    source = triton.compiler.ASTSource(kernel, signature, constexprs=dict(constants), attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    found = triton.compile(source, target=target, options={"enable_fp_fusion": False, **options})
    ptx: str = found.asm["ptx"]
    return ptx


def with_default(op: Op, shape: Shape, kernel: Any, constants: Mapping[str, Any], capability: int) -> str:
    """The kernel as the wrapper launches it where nothing was tuned."""
    variant = dict(op.default(shape))
    options = {name: variant.pop(name) for name in ("num_warps", "num_stages")}
    sizes = {name: shape[name] for name in ("num_kv_heads", "head_dim")}
    return ptx_of(
        kernel, {**sizes, "block_half": shape["head_dim"] // 2, **variant, **constants}, capability, **options
    )


def narrow(ptx: str) -> list[str]:
    """Reads and writes of the card's memory in fewer than 8 bytes a thread."""
    return re.findall(r"(?:ld|st)\.global\S*\.(?:b8|b16|v2\.b16|b32)\b(?<!v2\.b32)(?<!v4\.b32)", ptx)


def num_wide(ptx: str, what: str) -> int:
    """Reads (ld) or writes (st) of 16 bytes a thread."""
    return len(re.findall(rf"{what}\.global\S*\.v4\.b32\b", ptx))


@pytest.mark.parametrize("capability", [80, 90])
def test_rope_write_moves_16_bytes_a_thread(capability: int) -> None:
    from kernels.rope_write.kernel import rope_write_kernel

    shape = {"num_tokens": 64, "num_heads": 28, "num_kv_heads": 4, "head_dim": 128, "is_recorded": 1}
    ptx = with_default(ROPE_WRITE, shape, rope_write_kernel, {"num_heads": 28}, capability)
    assert not narrow(ptx)
    assert num_wide(ptx, "ld") >= 2 + 4  # both halves of queries; of keys, and of values
    assert num_wide(ptx, "st") >= 2 + 4 + 4  # queries; keys and values in the pool; in the record


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("num_tokens", [512, 8192])
def test_span_placement_moves_16_bytes_a_thread(capability: int, num_tokens: int) -> None:
    from kernels.span_placement.kernel import place_kernel

    shape = {"num_tokens": num_tokens, "num_layers": 28, "num_kv_heads": 4, "head_dim": 128}
    ptx = with_default(SPAN_PLACEMENT, shape, place_kernel, {"alignment": 16}, capability)
    assert not narrow(ptx)
    assert num_wide(ptx, "ld") >= 4
    assert num_wide(ptx, "st") == 4


def test_unaligned_tensors_are_not_read_by_16_bytes() -> None:
    from kernels.span_placement.kernel import place_kernel

    shape = {"num_tokens": 512, "num_layers": 28, "num_kv_heads": 4, "head_dim": 128}
    assert not num_wide(with_default(SPAN_PLACEMENT, shape, place_kernel, {"alignment": 8}, 90), "st")
    assert narrow(with_default(SPAN_PLACEMENT, shape, place_kernel, {"alignment": 4}, 90))


@pytest.mark.parametrize(("block_tokens", "block_width"), [(16, 128), (256, 32)])
def test_nothing_that_moves_is_written_before_all_of_it_was_read(block_tokens: int, block_width: int) -> None:
    from kernels.span_placement.kernel import move_kernel

    blocks = {"block_tokens": block_tokens, "block_width": block_width}
    ptx = ptx_of(move_kernel, {"width": 512, "alignment": 16, **blocks}, 90)
    steps = re.findall(r"ld\.global\S*\.v4\.b32|bar\.sync|st\.global", ptx)
    last_read = max(at for at, step in enumerate(steps) if step.startswith("ld"))
    first_written = steps.index("st.global")
    assert "bar.sync" in steps[last_read:first_written]
