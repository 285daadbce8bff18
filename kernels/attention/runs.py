"""Keys and values in pieces, the masks over them, and scratch memory for attention on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_BIAS_COLUMNS = 512
"""The minimum number of keys that a bias is made for."""


class Scratch:
    """Memory for intermediate values, kept from call to call: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._behind = torch.empty(0, 0)
        self._biases: dict[tuple[int, int, int | None, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor with undefined contents, valid until the next call with the same name and dtype."""
        size = torch.Size(shape).numel()
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(1 << (size - 1).bit_length(), dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)

    def get_causal_bias(self, num_tokens: int) -> Tensor:
        """Return -inf where a key comes after its query, else 0: float32 [num_tokens, num_tokens], read-only."""
        if len(self._behind) < num_tokens:
            self._behind = torch.full((num_tokens, num_tokens), float("-inf")).triu_(1)
        return self._behind[:num_tokens, :num_tokens]

    def get_bias(self, num_tokens: int, group: int, window: int | None, num_keys: int, dtype: torch.dtype) -> Tensor:
        """Return -inf where a key is hidden, else 0: [num_tokens * group, num_keys], rows by token. Do not write to it.

        It covers the last `num_keys` keys of the sequence, for its last tokens. Whether a key is hidden depends only on
        its distance from the end, so one tensor for each number of tokens serves all lengths.
        """
        name = (num_tokens, group, window, dtype)
        known = self._biases.get(name)
        if known is None or known.shape[1] < num_keys:
            columns = 1 << (max(num_keys, MIN_BIAS_COLUMNS) - 1).bit_length()
            hidden = ~make_causal_mask(num_tokens, columns, torch.device("cpu"), window)
            known = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
            known = self._biases[name] = known.repeat_interleave(group, dim=0)
        return known[:, known.shape[1] - num_keys :]


Run = tuple[Tensor, Tensor]
"""Keys and values of neighbouring positions, [num_positions, num_kv_heads, head_dim] each, with any strides."""


def truncate_runs(runs: Sequence[Run], end: int) -> list[Run]:
    """Return views of the first `end` positions of the runs."""
    first = []
    for keys, values in runs:
        if end <= 0:
            break
        first.append((keys[:end], values[:end]))
        end -= keys.shape[0]
    return first


def concat_by_head(parts: Sequence[Tensor], scratch: Scratch, name: str, dtype: torch.dtype) -> Tensor:
    """Concatenate the parts as `dtype` in the scratch memory `name`: contiguous [num_kv_heads, seq_len, head_dim]."""
    _, num_kv_heads, head_dim = parts[0].shape
    whole = scratch.take(name, (num_kv_heads, sum(part.shape[0] for part in parts), head_dim), dtype)
    start = 0
    for part in parts:
        whole[:, start : start + part.shape[0]].copy_(part.transpose(0, 1))
        start += part.shape[0]
    return whole


def make_causal_mask(num_tokens: int, seq_len: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return which keys each query sees: bool [num_tokens, seq_len], aligned to the bottom right.

    With a sliding window (Beltagy et al. 2020, arXiv 2004.05150) each row has at most `window` True, its own position
    last.
    """
    mask = torch.ones(num_tokens, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_tokens)
    return mask if window is None else mask.triu(seq_len - num_tokens - window + 1)


def make_position_mask(positions: Tensor, seq_len: int, window: int | None = None) -> Tensor:
    """Return which keys each query sees, its own position included: bool [num_tokens, seq_len]."""
    keys = torch.arange(seq_len, device=positions.device)[None, :]
    seen = keys <= positions[:, None]
    return seen if window is None else seen & (keys > positions[:, None] - window)


def cap_scores(scores: Tensor, cap: float | None) -> Tensor:
    """Change scores x to cap * tanh(x / cap) in place, if there is a cap (Gemma 2, arXiv 2408.00118)."""
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)
