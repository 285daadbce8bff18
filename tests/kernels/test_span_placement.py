"""Stored keys and values come to their places with the bits of RoPE on what was gathered; nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import Scratch
from kernels.rope import rope_table
from kernels.span_placement import chunks, place
from kernels.span_placement.reference import place as reference_place

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NUM_STORED, NUM_SLOTS = 500, 400


def check(
    source: list[int], target: list[int], positions: list[int], heads: tuple[int, int], dtype: torch.dtype
) -> None:
    """Against the reference, in pools that are NaN where nothing is placed."""
    num_kv_heads, head_dim = heads
    keys, values = torch.randn(2, NUM_STORED, num_kv_heads, head_dim).to(dtype)
    before = keys.clone(), values.clone()
    cos, sin = (part[positions] for part in rope_table(1000, head_dim, 1e4, CPU))
    actual, expected = (torch.full((2, NUM_SLOTS, num_kv_heads, head_dim), torch.nan, dtype=dtype) for _ in range(2))
    slots = torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64)
    place(keys, values, slots[0], cos, sin, *actual, slots[1], Scratch())
    reference_place(keys, values, slots[0], cos, sin, *expected, slots[1])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])


@settings(max_examples=60)
@given(
    data=st.data(),
    heads=st.sampled_from([(1, 8), (2, 64), (3, 64), (2, 128)]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1 << 30),
)
def test_has_the_bits_of_the_reference(
    data: st.DataObject, heads: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    """From any slots to any others, in runs and one by one."""
    torch.manual_seed(seed)
    source: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.sampled_from([1, 2, 7, 90]))
        first = data.draw(st.integers(0, NUM_STORED - count))
        source += (
            torch.randperm(NUM_STORED)[:count].tolist() if data.draw(st.booleans()) else [*range(first, first + count)]
        )
    target = torch.randperm(NUM_SLOTS)[: len(source)].tolist()
    if data.draw(st.booleans()):
        target.sort()
    if data.draw(st.booleans()):
        target = [*range(5, 5 + len(source))]
    check(source, target, torch.randint(0, 1000, (len(source),)).tolist(), heads, dtype)


@pytest.mark.parametrize("tokens", [1, 16, 100, 1000])
def test_the_size_of_a_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    monkeypatch.setattr(chunks, "TOKENS", tokens)
    torch.manual_seed(tokens)
    check([*range(30, 330)], [*range(60, 360)], [*range(7, 307)], (2, 64), torch.bfloat16)


def test_nothing_placed_is_nothing_done() -> None:
    check([], [], [], (2, 64), torch.bfloat16)


def test_the_rotation_counts() -> None:
    """Keys at position 0 are copied; at others they are not."""
    keys = torch.randn(4, 2, 64).bfloat16()
    cos, sin = rope_table(10, 64, 1e4, CPU)
    pool = torch.zeros(2, 4, 2, 64, dtype=torch.bfloat16)
    slots = torch.arange(4)
    place(keys, keys, slots, cos[[0, 0, 3, 9]], sin[[0, 0, 3, 9]], *pool, slots, Scratch())
    assert [bool(torch.equal(pool[0, at], keys[at])) for at in range(4)] == [True, True, False, False]
    assert torch.equal(pool[1], keys)
