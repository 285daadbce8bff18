"""How heads of keys and values are stored: as numbers, or in int8 with a scale for each head of a token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.native import elementwise

SCALE_BYTES = 2
"""Of the scale behind the integers of a head, in float16."""

MOST = 127.0
"""The largest integer."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """Heads as `numbers`; where `is_int8`, as head_dim integers of a byte and their scale.

    The heads of a token are then uint8 [num_heads, head_dim + SCALE_BYTES], in which the integers of all heads are
    followed by the scales of all, so that integers are aligned. Such rows are copied as they are: only those who write
    and those who attend know what they mean.
    """

    numbers: torch.dtype
    is_int8: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of stored rows."""
        return torch.uint8 if self.is_int8 else self.numbers

    @property
    def name(self) -> str:
        """The format's name: "bfloat16", "int8"."""
        return "int8" if self.is_int8 else str(self.numbers).removeprefix("torch.")

    def get_width(self, head_dim: int) -> int:
        """Return the elements of a stored head."""
        return head_dim + SCALE_BYTES if self.is_int8 else head_dim

    def count_bytes(self, head_dim: int) -> int:
        """Return the bytes of a stored head."""
        return self.get_width(head_dim) * self.dtype.itemsize

    def encode(self, heads: Tensor) -> Tensor:
        """Return heads [num_tokens, num_heads, head_dim] as they are stored, [num_tokens, num_heads, width]."""
        if not self.is_int8:
            return heads.to(self.numbers)
        return encode_heads(heads)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return stored rows [..., num_heads, width] as numbers [..., num_heads, head_dim]."""
        return decode_heads(rows, dtype) if self.is_int8 else rows.to(dtype)


def encode_heads(heads: Tensor) -> Tensor:
    """Return heads [num_tokens, num_heads, head_dim] as integers and scales, uint8 [num_tokens, num_heads, head_dim +
    SCALE_BYTES].

    The scale is that of the largest number, rounded to float16 before it divides. Where a number is NaN or infinite,
    the scale is, and so are all numbers that are decoded.
    """
    return elementwise.encode_heads(heads) if elementwise.can_run(heads) else naive_encode_heads(heads)


def naive_encode_heads(heads: Tensor) -> Tensor:
    """As `encode_heads`, by torch operations."""
    wide = heads.float()
    scales = (wide.abs().amax(dim=-1, keepdim=True) / MOST).to(torch.float16)
    quotients = torch.where(scales == 0, 0.0, wide / scales.float()).nan_to_num_(0.0, 0.0, 0.0)
    integers = quotients.round_().clamp_(-MOST, MOST).to(torch.int8)
    rows = torch.cat([each.view(torch.uint8).flatten(-2) for each in (integers, scales)], dim=-1)
    return rows.view(*heads.shape[:-1], heads.shape[-1] + SCALE_BYTES)


def decode_heads(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows of `encode_heads`, [..., num_heads, width], as numbers [..., num_heads, head_dim]."""
    integers, scales = split_rows(rows)
    return (integers.float() * scales.float()[..., None]).to(dtype)


def view_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return contiguous rows of `encode_heads`, [..., num_heads, width], as int8 in the same shape and as float16
    [..., num_heads * width / 2]: views of them.
    """
    return rows.view(torch.int8), rows.flatten(-2).view(torch.float16)


def split_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers, int8 [..., num_heads, head_dim], and scales, float16 [..., num_heads], of contiguous rows of
    `encode_heads`: views of them.
    """
    *sizes, num_heads, width = rows.shape
    head_dim, flat = width - SCALE_BYTES, rows.flatten(-2)
    integers = flat[..., : num_heads * head_dim].view(torch.int8).view(*sizes, num_heads, head_dim)
    return integers, flat.view(torch.float16)[..., num_heads * head_dim // SCALE_BYTES :]
