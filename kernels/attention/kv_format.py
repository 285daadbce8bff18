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
    """Heads as `numbers`; where `is_int8`, as head_dim integers and their scale, in bytes, one behind the other.

    Such rows are uint8 [..., head_dim + SCALE_BYTES]. They are copied as they are: only those who write and those who
    attend know what they mean.
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
        """Return heads [num_tokens, num_heads, head_dim] as they are stored."""
        if not self.is_int8:
            return heads.to(self.numbers)
        return elementwise.encode_heads(heads) if elementwise.can_run(heads) else encode_heads(heads)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return stored rows [..., width] as numbers [..., head_dim]."""
        return decode_heads(rows, dtype) if self.is_int8 else rows.to(dtype)


def encode_heads(heads: Tensor) -> Tensor:
    """Return heads [..., head_dim] as integers with their scale, uint8 [..., head_dim + SCALE_BYTES].

    The scale is that of the largest number, rounded to float16 before it divides. Where a number is NaN or infinite,
    the scale is, and so are all numbers that are decoded.
    """
    wide = heads.float()
    scales = (wide.abs().amax(dim=-1, keepdim=True) / MOST).to(torch.float16)
    quotients = torch.where(scales == 0, 0.0, wide / scales.float()).nan_to_num_(0.0, 0.0, 0.0)
    integers = quotients.round_().clamp_(-MOST, MOST).to(torch.int8)
    return torch.cat([integers.view(torch.uint8), scales.view(torch.uint8)], dim=-1)


def decode_heads(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows of `encode_heads`, [..., head_dim + SCALE_BYTES], as numbers [..., head_dim]."""
    scales = rows[..., -SCALE_BYTES:].contiguous().view(torch.float16)
    return (rows[..., :-SCALE_BYTES].view(torch.int8).float() * scales.float()).to(dtype)
