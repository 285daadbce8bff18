"""Kernels compile for cards that are not installed here, within the limits of each card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch

from kernels.attention.kv_format import SCALE_BYTES
from kernels.op import Op, Shape, Variant, is_interpreting
from kernels.paged_attention import variants
from kernels.paged_attention.op import HOPPER, OP, SEQS_AT_ONCE, count_chunks_at_once, split_head
from kernels.rope_write import OP as ROPE_WRITE
from kernels.span_placement.op import OP as SPAN_PLACEMENT

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(is_interpreting(), reason="compiles, which the interpreter stands for")

SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""What a block may take, by compute capability: A100, L4 and RTX 4090, H100 and H200."""

TYPES = {"levels": "*fp32", "scale": "fp32", "cap": "fp32"}
PLAIN = {"num_seqs", "num_tokens", "least_chunk", "num_chunks", "num_rows"}
"""Numbers that are not known to be multiples of 16."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a kernel takes of a card."""

    shared_bytes: int
    ptx: str


def compiled(
    kernel: Any, constants: dict[str, Any], types: dict[str, str], capability: int, **options: int
) -> Compiled:
    """As a launch compiles it, without a card."""
    import triton
    from triton.backends.compiler import GPUTarget

    signature, attributes = {}, {}
    for at, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else types.get(name, TYPES.get(name, "i32"))
        if name not in constants and name not in PLAIN and name not in ("scale", "cap"):
            attributes[(at,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Compiled(found.metadata.shared, found.asm["ptx"])


def attend(shape: Shape, variant: Variant, capability: int, dtype: str = "bf16") -> Compiled:
    """The kernel of a shape whose sequences have several blocks and chunks."""
    from kernels.paged_attention.kernel import attention_kernel as kernel

    constants: dict[str, Any] = {
        "SLOT_STRIDE": shape["num_kv_heads"] * shape["head_dim"],
        "HEAD_STRIDE": shape["head_dim"],
        "GROUP": shape["group"],
        "HEAD_DIM": split_head(shape["head_dim"])[0],
        "TAIL": split_head(shape["head_dim"])[1],
        "KEYS_ARE_VALUES": bool(shape.get("latent")),
        "PAGE_SIZE": shape["page_size"],
        "WINDOW": shape["window"],
        "CAPS": bool(shape.get("caps")),
        "ROWS": variant["rows"],
        "KEYS": variant["keys"],
        "IS_CUT": variant["splits"] > 1,
        "ONE_BLOCK": shape["num_rows"] == 1,
        "ONE_SEQ": False,
        "LANES": SEQS_AT_ONCE,
        "SCALE_STRIDE": 0,
    }
    constants |= {} if variant["splits"] > 1 else {"levels": None}
    stored = dtype
    if shape.get("int8"):
        stored, width = "i8", shape["num_kv_heads"] * (shape["head_dim"] + SCALE_BYTES)
        constants |= {"SLOT_STRIDE": width, "SCALE_STRIDE": width // SCALE_BYTES}
    else:
        constants |= {"key_scales": None, "value_scales": None}
    types = dict.fromkeys(("keys", "values"), f"*{stored}") | dict.fromkeys(("key_scales", "value_scales"), "*fp16")
    types |= {
        "query": f"*{dtype}",
        "out": "*fp32" if variant["splits"] > 1 else f"*{dtype}",
    }
    types |= dict.fromkeys(("page_table", "page_starts", "query_starts", "seq_lens", "key_ends"), "*i32")
    stages = {name: variant[name] for name in ("num_warps", "num_stages")}
    return compiled(kernel, constants, types, capability, enable_fp_fusion=True, **stages)


def with_shape(num_rows: int, heads: int, **others: int) -> Shape:
    """A timed shape of so many rows over 32,768 keys of the 0.5B, 1.5B or 7B model's heads."""
    found = [each for each in OP.benchmark_shapes if (each["num_rows"], each["num_keys"]) == (num_rows, 32768)]
    return {**found[heads], **others}


def check(shape: Shape, capability: int, dtype: torch.dtype = torch.bfloat16) -> Compiled:
    """What is reckoned beforehand is enough, and no more than the card has."""
    card, rest = SHARED_BYTES[capability], (dtype, capability // 10 == HOPPER)
    variant = variants.fit_to_card(OP.default(shape), shape["head_dim"], *rest, card)
    found = attend(shape, variant, capability, {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype])
    assert found.shared_bytes <= variants.count_shared_bytes(variant, shape["head_dim"], *rest) <= card
    return found


def test_a_verify_pass_on_hopper_keeps_loads_of_16_bytes_in_flight_and_multiplies_by_warpgroup() -> None:
    ptx = check(with_shape(64, 2), 90).ptx
    assert "wgmma.mma_async" in ptx
    assert "cp.async.cg.shared.global" in ptx
    waits = [line.split()[-1] for line in ptx.splitlines() if "cp.async.wait_group" in line]
    assert "0x2;" in waits or "2;" in waits  # another tile's keys and values are still on their way


@pytest.mark.parametrize(("heads", "num_bytes"), [(0, 4), (1, 4), (2, 8)], ids=["0.5B", "1.5B", "7B"])
def test_keys_in_int8_are_read_by_words(heads: int, num_bytes: int) -> None:
    """The integers of a token are aligned to as many bytes as its scales take, if that is a power of two."""
    ptx = check(with_shape(64, heads, int8=1), 90).ptx
    assert "wgmma.mma_async" in ptx
    assert re.search(rf"cp\.async\.ca\.shared\.global \[[^]]*\], \[[^]]*\], 0x{num_bytes},", ptx), "no loads in flight"
    assert not re.search(r"ld\.global\S*\.b8\b", ptx)


@pytest.mark.long
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize(
    "shape",
    [
        *(with_shape(rows, heads) for rows in (1, 16, 64, 1024) for heads in range(3)),
        with_shape(64, 2, window=4096),
        *(with_shape(rows, heads, int8=1) for rows in (1, 64, 1024) for heads in (0, 2)),
        with_shape(64, 2, head_dim=256),
        with_shape(1, 2, head_dim=256, group=8),
        *(with_shape(rows, 2, head_dim=96) for rows in (1, 64)),
        *(with_shape(rows, 2, head_dim=576, num_kv_heads=1, group=16, latent=1) for rows in (1, 64)),
    ],
    ids=str,
)
def test_defaults_fit(shape: Shape, capability: int) -> None:
    check(shape, capability)


@pytest.mark.long
@pytest.mark.parametrize("capability", [89, 90])
def test_float32_fits(capability: int) -> None:
    check(with_shape(64, 2, head_dim=256), capability, torch.float32)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256, 576])
def test_the_merge_fits(head_dim: int) -> None:
    from kernels.paged_attention.kernel import merge_chunks_kernel

    constants = {"WINDOW": False, "HEAD_DIM": head_dim, "CHUNKS": count_chunks_at_once(head_dim)}
    constants |= {"BLOCK_DIM": 1 << (head_dim - 1).bit_length()}
    types = {"out": "*bf16", "shares": "*fp32", "levels": "*fp32"}
    assert compiled(merge_chunks_kernel, constants, types, 80, enable_fp_fusion=True).shared_bytes <= 48 * 1024


pytest.importorskip("triton")

SLOTS = ("slots", "record_slots", "source_slots", "target_slots", "addresses")
NUMBERS = ("num_tokens", "num_layers")
NO_INT8 = dict.fromkeys(
    (
        *(f"{which}_scales" for which in ("pool_key", "pool_value", "record_key", "record_value", "key")),
        *("key_bias", "halves"),
    )
)
"""Arguments of kernels that are None where keys and values are not in int8."""

NO_TYPES: Mapping[str, str] = MappingProxyType({})


def ptx_of(
    kernel: Any, constants: Mapping[str, Any], capability: int, types: Mapping[str, str] = NO_TYPES, **options: int
) -> str:
    """As a launch compiles it for bfloat16, without a card. types: of arguments that are something else."""
    import triton
    from triton.backends.compiler import GPUTarget

    constants = {name: value for name, value in NO_INT8.items() if name not in types} | dict(constants)
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = (
        dict(types) | dict.fromkeys(SLOTS, "*i64") | dict.fromkeys(NUMBERS, "i32") | {"cos": "*fp32", "sin": "*fp32"}
    )
    signature = {name: "constexpr" if name in constants else types.get(name, "*bf16") for name in kernel.arg_names}
    aligned = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
    }
    source = triton.compiler.ASTSource(kernel, signature, constexprs=dict(constants), attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    found = triton.compile(source, target=target, options={"enable_fp_fusion": False, **options})
    ptx: str = found.asm["ptx"]
    return ptx


def with_default(
    op: Op,
    shape: Shape,
    kernel: Any,
    constants: Mapping[str, Any],
    capability: int,
    types: Mapping[str, str] = NO_TYPES,
) -> str:
    """The kernel as the wrapper launches it where nothing was tuned."""
    variant = dict(op.default(shape))
    options = {name: variant.pop(name) for name in ("num_warps", "num_stages")}
    sizes = {name: shape[name] for name in ("num_kv_heads", "head_dim")}
    return ptx_of(
        kernel, {**sizes, "block_half": shape["head_dim"] // 2, **variant, **constants}, capability, types, **options
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
    ptx = with_default(SPAN_PLACEMENT, shape, place_kernel, {"alignment": 16, "has_values": True}, capability)
    assert not narrow(ptx)
    assert num_wide(ptx, "ld") >= 4
    assert num_wide(ptx, "st") == 4


INT8_TYPES = {
    **dict.fromkeys(("pool_keys", "pool_values", "record_keys", "record_values", "pool"), "*i8"),
    **{name: "*fp32" if name in ("key_bias", "key_scales") else "*fp16" for name in NO_INT8},
}


@pytest.mark.parametrize("capability", [80, 90])
def test_keys_in_int8_are_written_by_words(capability: int) -> None:
    from kernels.rope_write.kernel import rope_write_kernel
    from kernels.span_placement.kernel import place_kernel

    shape = {"num_tokens": 64, "num_heads": 28, "num_kv_heads": 4, "head_dim": 128, "is_recorded": 1, "num_layers": 28}
    written = with_default(ROPE_WRITE, shape, rope_write_kernel, {"num_heads": 28}, capability, INT8_TYPES)
    placed = with_default(
        SPAN_PLACEMENT, shape, place_kernel, {"alignment": 16, "has_values": True}, capability, INT8_TYPES
    )
    for ptx, num_heads in ((written, 4), (placed, 2)):
        assert not re.findall(r"(?:ld|st)\.global\S*\.b8\b", ptx)
        assert len(re.findall(r"st\.global\S*\.(?:v2\.)?b32\b", ptx)) >= 2 * num_heads  # both halves
        assert "div.rn.f32" in ptx


def test_unaligned_tensors_are_not_read_by_16_bytes() -> None:
    from kernels.span_placement.kernel import place_kernel

    shape = {"num_tokens": 512, "num_layers": 28, "num_kv_heads": 4, "head_dim": 128}
    assert not num_wide(
        with_default(SPAN_PLACEMENT, shape, place_kernel, {"alignment": 8, "has_values": True}, 90), "st"
    )
    assert narrow(with_default(SPAN_PLACEMENT, shape, place_kernel, {"alignment": 4, "has_values": True}, 90))


@pytest.mark.parametrize(("block_tokens", "block_width"), [(16, 128), (256, 32)])
def test_nothing_that_moves_is_written_before_all_of_it_was_read(block_tokens: int, block_width: int) -> None:
    from kernels.span_placement.kernel import move_kernel

    blocks = {"block_tokens": block_tokens, "block_width": block_width}
    ptx = ptx_of(move_kernel, {"width": 512, "alignment": 16, **blocks}, 90)
    steps = re.findall(r"ld\.global\S*\.v4\.b32|bar\.sync|st\.global", ptx)
    last_read = max(at for at, step in enumerate(steps) if step.startswith("ld"))
    first_written = steps.index("st.global")
    assert "bar.sync" in steps[last_read:first_written]


pytest.importorskip("triton")

ROW_TYPES = {
    **dict.fromkeys(("x", "delta", "weight", "out", "gate_up", "logits"), "*bf16"),
    **dict.fromkeys(("ids", "drawn", "row_starts", "words"), "*i32"),
    **dict.fromkeys(("values", "temperatures"), "*fp32"),
    **dict.fromkeys(("sums", "numbers"), "*fp64"),
    "draft": "*i64",
    "eps": "fp32",
}
"""Of arguments that are no int32."""

ROW_PLAIN = {"num_rows", "num_heads", "num_chunks", "eps"}
"""Numbers that are not known to be multiples of 16."""

WIDE_LOAD = "ld.global.v4.b32"


def ptx(
    kernel: Any,
    constants: Mapping[str, Any],
    capability: int,
    num_warps: int = 4,
    types: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """As a launch compiles a kernel, without a card."""
    import triton
    from triton.backends.compiler import GPUTarget

    names = [*enumerate(kernel.arg_names)]
    all_types = ROW_TYPES | types
    signature = {name: "constexpr" if name in constants else all_types.get(name, "i32") for _, name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in names if name not in {*constants, *ROW_PLAIN}}
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
    gate = ptx(swiglu_kernel, {"BLOCK": 1024, "IS_GELU": False}, capability)
    assert (gate.count(WIDE_LOAD), gate.count("st.global.v4.b32")) == (2, 1)


@pytest.mark.long
def test_rows_in_fp8_are_loaded_16_and_stored_8_bytes_at_once() -> None:
    from kernels.fp8_rows import FP8_MOST, LEAST_SCALE
    from kernels.fp8_rows.kernel import fp8_rows_kernel

    constants = {"SIZE": 4096, "MOST": FP8_MOST, "LEAST": LEAST_SCALE}
    types = {"values": "*fp8e4nv", "scales": "*fp32"}
    found = ptx(fp8_rows_kernel, constants, 90, 16, types)
    assert (found.count(WIDE_LOAD), found.count("st.global.v2.b32")) == (1, 1)
