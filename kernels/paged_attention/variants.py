"""The constants that the kernel of paged attention may have, and which of them are sane for a shape.

`rows`: query heads of a block; `keys`: places of a tile; `chunk`: places that one program walks over at most, or 0 for
all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch

from kernels.op import Shape, Variant
from kernels.paged_attention.batch import TREE_BITS

SPACE: Mapping[str, Sequence[int]] = {
    "rows": (16, 32, 64, 128),
    "keys": (32, 64, 128),
    "chunk": (0, *(1 << power for power in range(7, 16))),
    "num_warps": (2, 4, 8),
    "num_stages": (2, 3, 4),
}

MOST_SHARED_BYTES = 227 * 1024
"""Of a block on Hopper, which has the most; a launch on a smaller card takes fewer stages."""

WARPGROUP_ROWS = 64
"""Rows from which on Hopper multiplies by four warps together, with operands from shared memory."""

MOST_SHARE_BYTES = 512 << 20
"""Of the chunks' shares of one layer. They are worth their memory where there are few rows."""

MOST_SUMS = 128
"""float32 sums that a thread can keep beside its scores and addresses: it has 255 registers."""

MORE_SHARED_BYTES = 2048
"""For the largest score and the total of rows that several warps share."""

LEAST_SCORES = 256
"""Of a tile for each warp: two products of 16 x 8."""

NUM_PROCESSORS = 132
"""Multiprocessors of an H100 or H200. Programs of 128 rows are alone on one of them, of smaller ones there are two."""

FAR = 8192
"""Places behind which a program of few rows never walks: one long sequence among short ones would keep all waiting."""

FEW_ROWS = 128

CHUNKS = tuple(part << power for power in range(7, 16) for part in (2, 3))
"""What the default picks from. 128 rows' share of the least, float32 written and read, is as large as what it is of."""

ROW_BORDERS = (1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
KEY_BORDERS = (1024,)
SEQ_BORDERS = (1,)
"""The largest sizes of the classes of shapes; behind the last one, powers of two."""


def is_valid(variant: Variant, shape: Shape) -> bool:
    """Whether a kernel of these constants can run a shape, and does not only waste what another would use."""
    rows, keys, chunk, head_dim = variant["rows"], variant["keys"], variant["chunk"], shape["head_dim"]
    if rows > _smallest_block(shape["num_rows"] * shape["group"]):
        return False
    if chunk and (chunk % keys or chunk >= shape["num_keys"] or _share_bytes(variant, shape) > MOST_SHARE_BYTES):
        return False
    if rows * head_dim > MOST_SUMS * 32 * variant["num_warps"] or rows * keys < LEAST_SCORES * variant["num_warps"]:
        return False
    return shared_bytes(variant, head_dim, torch.bfloat16, bool(shape["branches"]), on_hopper=True) <= MOST_SHARED_BYTES


def default(shape: Shape) -> Variant:
    """The largest block that a sequence fills, and chunks so that every multiprocessor has work.

    It is the same for a whole class of shapes, so that what a row finds depends on its batch by the class alone.
    """
    num_rows, num_keys = _class_border(shape["num_rows"], ROW_BORDERS), _class_border(shape["num_keys"], KEY_BORDERS)
    rows = _smallest_block(num_rows * shape["group"])
    if shape["head_dim"] > 128:
        rows = min(rows, 64)
    num_blocks = -(-num_rows * shape["group"] // rows) * _class_border(shape["num_seqs"], SEQ_BORDERS)
    at_once = NUM_PROCESSORS if rows * shape["head_dim"] > 64 * 128 else 2 * NUM_PROCESSORS
    chunk = _chunk(num_keys, max(1, at_once // (num_blocks * shape["num_kv_heads"])))
    if num_rows <= FEW_ROWS and num_keys > FAR:
        chunk = min(chunk or FAR, FAR)
    return {
        "rows": rows,
        "keys": 32 if shape["head_dim"] > 128 else 64,
        "chunk": chunk,
        "num_warps": 8 if rows * shape["head_dim"] > 64 * 128 else 4,
        "num_stages": 3,
    }


def shape_class(shape: Shape) -> str:
    """What shapes have one winner: the model's heads, and about how many rows and keys there are."""
    parts = {
        "head_dim": shape["head_dim"],
        "kv_heads": shape["num_kv_heads"],
        "group": shape["group"],
        "page": shape["page_size"],
        "seqs": _class_name(shape["num_seqs"], SEQ_BORDERS),
        "rows": _class_name(shape["num_rows"], ROW_BORDERS),
        "keys": _class_name(shape["num_keys"], KEY_BORDERS),
    }
    flags = [name for name in ("window", "branches") if shape.get(name)]
    return " ".join([*(f"{name}={value}" for name, value in parts.items()), *flags])


def fitted(
    variant: Variant, head_dim: int, dtype: torch.dtype, has_tree: bool, on_hopper: bool, most_shared_bytes: int
) -> Variant:
    """The variant with as many stages as a card's shared memory holds, and in float32 with tiles that it holds at all.

    No winner is searched in float32, in which there are no matrix units: it is for comparing.
    """
    fit = dict(variant)
    if dtype == torch.float32:
        fit |= {"rows": min(fit["rows"], 32), "keys": 32}
    while fit["num_stages"] > 1 and shared_bytes(fit, head_dim, dtype, has_tree, on_hopper) > most_shared_bytes:
        fit["num_stages"] -= 1
    while fit["keys"] > 16 and shared_bytes(fit, head_dim, dtype, has_tree, on_hopper) > most_shared_bytes:
        fit["keys"] //= 2
    return fit


def shared_bytes(variant: Variant, head_dim: int, dtype: torch.dtype, has_tree: bool, on_hopper: bool) -> int:
    """Shared memory of a block: queries, tiles of keys and of values that are under way, shares, words of a tree.

    As Triton allots it (3.9): operands of a warpgroup's product stay there, so a tile is held for each stage; others go
    to registers, a stage earlier, and shares change hands.
    """
    rows, keys, num_stages = (variant[name] for name in ("rows", "keys", "num_stages"))
    by_warpgroup = on_hopper and rows >= WARPGROUP_ROWS and variant["num_warps"] >= 4 and dtype.itemsize == 2
    num_tiles = 2 * (num_stages if by_warpgroup else max(1, num_stages - 1))
    numbers = (rows + num_tiles * keys) * head_dim + (0 if by_warpgroup else rows * keys)
    words = (keys // TREE_BITS + 2) * rows * num_stages if has_tree else 0
    return numbers * dtype.itemsize + words * 8 + MORE_SHARED_BYTES


def _chunk(num_keys: int, most: int) -> int:
    """The smallest chunk of which there are no more than so many; 0 where one is enough."""
    enough = (chunk for chunk in CHUNKS if -(-num_keys // chunk) <= most)
    chunk = next(enough, 0)
    return chunk if chunk < num_keys else 0


def _share_bytes(variant: Variant, shape: Shape) -> int:
    num_chunks = -(-shape["num_keys"] // variant["chunk"])
    num_heads = shape["num_kv_heads"] * shape["group"]
    return num_chunks * shape["num_seqs"] * shape["num_rows"] * num_heads * shape["head_dim"] * 4


def _smallest_block(num_rows: int) -> int:
    """The smallest block that holds so many query heads, or else the largest."""
    blocks = SPACE["rows"]
    return blocks[min(bisect_left(blocks, num_rows), len(blocks) - 1)]


def _class_border(size: int, borders: Sequence[int]) -> int:
    """The largest size of a size's class."""
    at = bisect_left(borders, size)
    return borders[at] if at < len(borders) else 1 << (size - 1).bit_length()


def _class_name(size: int, borders: Sequence[int]) -> str:
    """'17..64', or '1'."""
    end = _class_border(size, borders)
    at = bisect_left(borders, size)
    first = (borders[at - 1] if at < len(borders) else end // 2) + 1 if at else 1
    return str(end) if first == end else f"{first}..{end}"
