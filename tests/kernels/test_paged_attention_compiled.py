"""The kernel of attention over pages compiles for cards that are not here, within what each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels.op import Shape, Variant, is_interpreting
from kernels.paged_attention import TREE_BITS, variants
from kernels.paged_attention.op import CHUNKS_AT_ONCE, HOPPER, OP, SEQS_AT_ONCE

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(is_interpreting(), reason="compiles, which the interpreter stands for")

SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""What a block may take, by compute capability: A100, L4 and RTX 4090, H100 and H200."""

TYPES = {"levels": "*fp32", "tree": "*i64", "scale": "fp32"}
PLAIN = {"num_seqs", "num_tokens", "num_words", "page_stride", "num_places", "chunk", "num_chunks", "num_rows"}
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
        if name not in constants and name not in PLAIN and name != "scale":
            attributes[(at,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Compiled(found.metadata.shared, found.asm["ptx"])


def attend(shape: Shape, variant: Variant, capability: int, dtype: str = "bf16") -> Compiled:
    """The kernel of a shape whose sequences have several blocks and chunks."""
    from kernels.paged_attention.kernel import attention_kernel as kernel

    has_tree = bool(shape["branches"])
    constants: dict[str, Any] = {
        "SLOT_STRIDE": shape["num_kv_heads"] * shape["head_dim"],
        "HEAD_STRIDE": shape["head_dim"],
        "GROUP": shape["group"],
        "HEAD_DIM": shape["head_dim"],
        "PAGE_SIZE": shape["page_size"],
        "WINDOW": shape["window"],
        "TREE_BITS": TREE_BITS if has_tree else 0,
        "ROWS": variant["rows"],
        "KEYS": variant["keys"],
        "IS_CUT": bool(variant["chunk"]),
        "ONE_BLOCK": shape["num_rows"] == 1,
        "ONE_SEQ": False,
        "LANES": SEQS_AT_ONCE,
    }
    constants |= {} if has_tree else {"tree": None, "tree_starts": None}
    constants |= {} if variant["chunk"] else {"levels": None}
    types = dict.fromkeys(("query", "keys", "values"), f"*{dtype}") | {
        "out": "*fp32" if variant["chunk"] else f"*{dtype}"
    }
    types |= dict.fromkeys(("page_table", "query_starts", "seq_lens", "key_ends", "tree_starts"), "*i32")
    stages = {name: variant[name] for name in ("num_warps", "num_stages")}
    return compiled(kernel, constants, types, capability, enable_fp_fusion=True, **stages)


def with_shape(num_rows: int, heads: int, **others: int) -> Shape:
    """A timed shape of so many rows over 32,768 keys of the 0.5B, 1.5B or 7B model's heads."""
    found = [each for each in OP.benchmark_shapes if (each["num_rows"], each["num_keys"]) == (num_rows, 32768)]
    return {**found[heads], **others}


def check(shape: Shape, capability: int, dtype: torch.dtype = torch.bfloat16) -> Compiled:
    """What is reckoned beforehand is enough, and no more than the card has."""
    card, rest = SHARED_BYTES[capability], (dtype, bool(shape["branches"]), capability // 10 == HOPPER)
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


@pytest.mark.long
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize(
    "shape",
    [
        *(with_shape(rows, heads) for rows in (1, 16, 64, 1024) for heads in range(3)),
        with_shape(64, 2, branches=2),
        with_shape(64, 2, window=4096),
        with_shape(64, 2, head_dim=256),
        with_shape(1, 2, head_dim=256, group=8),
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
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_merge_fits(head_dim: int) -> None:
    from kernels.paged_attention.kernel import merge_chunks_kernel

    constants = {"HEAD_DIM": head_dim, "CHUNKS": CHUNKS_AT_ONCE}
    types = {"out": "*bf16", "shares": "*fp32", "levels": "*fp32"}
    assert compiled(merge_chunks_kernel, constants, types, 80, enable_fp_fusion=True).shared_bytes <= 48 * 1024
