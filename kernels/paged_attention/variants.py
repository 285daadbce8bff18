"""Constants of the kernel of paged attention, and which of them suit a shape.

`rows`: query heads of a block. `keys`: positions of a tile. `splits`: the most chunks of a sequence's keys, each for a
program of its own. `chunk`: the fewest positions of one; a sequence that is longer than so many such chunks has chunks
of a multiple.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch

from kernels.op import Shape, Variant

SPACE: Mapping[str, Sequence[int]] = {
    "rows": (16, 32, 64, 128),
    "keys": (32, 64, 128),
    "splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    "chunk": (256,),
    "num_warps": (2, 4, 8),
    "num_stages": (2, 3, 4),
}

MAX_SHARED_BYTES = 227 * 1024
"""Shared memory of a block on Hopper, which has the most; a launch on a smaller card takes fewer stages."""

WARPGROUP_ROWS = 64
"""Rows from which Hopper multiplies by four warps together, with operands in shared memory."""

MAX_PARTIAL_BYTES = 512 << 20
"""The chunks' partial results of one layer. They pay off if there are few rows."""

MAX_SUMS = 128
"""float32 sums that a thread can keep together with its scores and addresses: it has 255 registers."""

EXTRA_SHARED_BYTES = 2048
"""For the maximum score and the sum of rows that several warps share."""

MIN_SCORES = 256
"""Scores of a tile for each warp: two products of 16 x 8."""

NUM_PROCESSORS = 132
"""Multiprocessors of an H100 or H200. A program of 128 rows has one to itself; two smaller ones share one."""

LONG_CHUNK = 8192
"""The most positions that a program attends to, if there is memory: one long sequence would keep many short ones
waiting."""

FEW_ROWS = 128

SHORT_CHUNK = 256
"""The fewest positions of a chunk: the float32 partial result of 128 rows is as large as the keys and values that it is
computed from."""

ROW_BORDERS = (1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
KEY_BORDERS = (1024,)
SEQ_BORDERS = (1,)
"""The largest sizes of the classes of shapes; after the last one, powers of two."""


def is_valid(variant: Variant, shape: Shape) -> bool:
    """Return whether a kernel with these constants can run a shape, and is not merely more wasteful than another."""
    rows, keys, splits, head_dim = variant["rows"], variant["keys"], variant["splits"], shape["head_dim"]
    if rows > _choose_block(shape["num_rows"] * shape["group"]):
        return False
    if splits > 1 and (
        variant["chunk"] % keys
        or variant["chunk"] * (splits - 1) >= shape["num_keys"]
        or splits > _count_most_partials(shape, _count_tokens(shape))
    ):
        return False
    if rows * head_dim > MAX_SUMS * 32 * variant["num_warps"] or rows * keys < MIN_SCORES * variant["num_warps"]:
        return False
    return count_shared_bytes(variant, head_dim, torch.bfloat16, on_hopper=True) <= MAX_SHARED_BYTES


def default(shape: Shape) -> Variant:
    """Return the largest block that a sequence fills, and so many chunks that every multiprocessor has work and no
    program attends to more than LONG_CHUNK keys. The latter is left out for many rows of one sequence, whose programs
    all take equally long: their partial results would take longer than they save.

    The result is the same for a whole class of shapes, so a row's result depends on its batch only by the class. The
    number of keys is that of the longest sequence, or the most that a captured pass may have. If that asks for more
    chunks than the multiprocessors do, chunks are longer, so that short sequences are not cut into as many.
    """
    num_rows, num_keys = (
        _get_class_limit(shape["num_rows"], ROW_BORDERS),
        _get_class_limit(shape["num_keys"], KEY_BORDERS),
    )
    num_seqs = _get_class_limit(shape["num_seqs"], SEQ_BORDERS)
    num_tokens = num_seqs if num_rows == 1 else _get_class_limit(_count_tokens(shape), ROW_BORDERS)
    rows = _choose_block(num_rows * shape["group"])
    is_wide = shape["head_dim"] > 256
    if shape["head_dim"] > 128:
        rows = min(rows, 32 if is_wide else 64)
    num_blocks = min(-(-num_rows * shape["group"] // rows) * num_seqs, num_tokens * shape["group"] // rows + num_seqs)
    processors = shape.get("processors", NUM_PROCESSORS)
    at_once = processors if rows * shape["head_dim"] > 64 * 128 else 2 * processors
    most = max(1, at_once // (num_blocks * shape["num_kv_heads"]))
    num_long = -(-num_keys // LONG_CHUNK) if num_seqs > 1 or num_rows <= FEW_ROWS else 1
    chunk = min(LONG_CHUNK, SHORT_CHUNK * -(-num_long // most))
    splits = min(max(most, num_long), -(-num_keys // chunk), _count_most_partials(shape, num_tokens))
    return {
        "rows": rows,
        "keys": 32 if shape["head_dim"] > 128 and not is_wide else 64,
        "splits": max(1, splits),
        "chunk": chunk,
        "num_warps": 4 if is_wide and rows == 16 else 8 if rows * shape["head_dim"] > 64 * 128 else 4,
        "num_stages": 2 if is_wide else 3,
    }


def shape_class(shape: Shape) -> str:
    """Name the shapes that share a winner: the model's heads, and the approximate numbers of rows and keys. "rows" are
    those of the sequence that has most; "tokens" those of all, where there are several.
    """
    parts = {
        "head_dim": shape["head_dim"],
        "kv_heads": shape["num_kv_heads"],
        "group": shape["group"],
        "page": shape["page_size"],
        "seqs": _name_class(shape["num_seqs"], SEQ_BORDERS),
        "rows": _name_class(shape["num_rows"], ROW_BORDERS),
        "keys": _name_class(shape["num_keys"], KEY_BORDERS),
    }
    if shape["num_seqs"] > 1 and shape["num_rows"] > 1:
        parts["tokens"] = _name_class(_count_tokens(shape), ROW_BORDERS)
    return " ".join(
        [
            *(f"{name}={value}" for name, value in parts.items()),
            *(name for name in ("window", "int8", "latent") if shape.get(name)),
        ]
    )


def fit_to_card(
    variant: Variant, head_dim: int, dtype: torch.dtype, on_hopper: bool, most_shared_bytes: int
) -> Variant:
    """Reduce the stages to the card's shared memory, and the tiles too if that is not enough.

    There is no tuning in float32, for which there are no matrix units: it is for comparisons.
    """
    fit = dict(variant)
    if dtype == torch.float32:
        fit |= {"rows": min(fit["rows"], 32), "keys": min(fit["keys"], 32)}
    while fit["num_stages"] > 1 and count_shared_bytes(fit, head_dim, dtype, on_hopper) > most_shared_bytes:
        fit["num_stages"] -= 1
    while fit["keys"] > 16 and count_shared_bytes(fit, head_dim, dtype, on_hopper) > most_shared_bytes:
        fit["keys"] //= 2
    return fit


def count_shared_bytes(variant: Variant, head_dim: int, dtype: torch.dtype, on_hopper: bool) -> int:
    """Return the shared memory of a block: queries, tiles of keys and values in flight, and softmax weights.

    This is how Triton 3.9 allocates it. Operands of a warpgroup's product stay in shared memory, so a tile is held for
    each stage. Other operands go to registers one stage earlier, and softmax weights pass through shared memory.
    """
    rows, keys, num_stages = (variant[name] for name in ("rows", "keys", "num_stages"))
    by_warpgroup = on_hopper and rows >= WARPGROUP_ROWS and variant["num_warps"] >= 4 and dtype.itemsize == 2
    num_tiles = 2 * (num_stages if by_warpgroup else max(1, num_stages - 1))
    numbers = (rows + num_tiles * keys) * head_dim + (0 if by_warpgroup else rows * keys)
    return numbers * dtype.itemsize + EXTRA_SHARED_BYTES


def _count_tokens(shape: Shape) -> int:
    """Return the rows of all sequences."""
    return shape.get("num_tokens", shape["num_seqs"] * shape["num_rows"])


def _count_most_partials(shape: Shape, num_tokens: int) -> int:
    """Return how many partial results of each row there is memory for."""
    num_heads = shape["num_kv_heads"] * shape["group"]
    return MAX_PARTIAL_BYTES // (num_tokens * num_heads * shape["head_dim"] * 4)


def _choose_block(num_rows: int) -> int:
    """Return the smallest block that holds that many query heads, or else the largest."""
    blocks = SPACE["rows"]
    return blocks[min(bisect_left(blocks, num_rows), len(blocks) - 1)]


def _get_class_limit(size: int, borders: Sequence[int]) -> int:
    """Return the largest size of a size's class."""
    at = bisect_left(borders, size)
    return borders[at] if at < len(borders) else 1 << (size - 1).bit_length()


def _name_class(size: int, borders: Sequence[int]) -> str:
    """Return '17..64', or '1' for a class of one size."""
    end = _get_class_limit(size, borders)
    at = bisect_left(borders, size)
    first = (borders[at - 1] if at < len(borders) else end // 2) + 1 if at else 1
    return str(end) if first == end else f"{first}..{end}"
