"""The KV pool as a batch sees it, and the contiguous KV cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import engine.weights.parameters
from engine.contiguous_cache import KVCache, reset_all_caches
from engine.decoder import Batch, Decoder
from engine.kv_cache import PageCopy
from engine.kv_pool import MOST_GATHERED, KVPool
from engine.weights.parameters import Parameters
from tests.engine.tiny import tiny_config


def poisoned_pool(num_slots: int) -> KVPool:
    """Slots that nobody has written are NaN."""
    pool = KVPool(tiny_config(), num_slots // 4, 4, torch.device("cpu"), torch.float32)
    for tensor in (*pool.keys, *pool.values):
        tensor.fill_(torch.nan)
    return pool


def test_what_is_written_is_read_back_in_runs() -> None:
    pool = poisoned_pool(32)
    view = pool.view([[(4, 6), (12, 13)], [(20, 23)]], [[(5, 6), (12, 13)], [(20, 23)]])
    keys, values = torch.randn(2, 5, 2, 8)
    view.write(1, keys, values)
    assert torch.equal(pool.keys[1][[5, 12, 20, 21, 22]], keys)
    (_, second), (only,) = view.runs(1, 0), view.runs(1, 1)
    assert torch.equal(second[1], values[1:2])
    assert torch.equal(only[0], keys[2:])
    assert pool.keys[0].isnan().all(), "another layer"


def test_singles_are_gathered_and_padded_with_what_is_their_own() -> None:
    pool = poisoned_pool(64)
    reads = [[(8, 10)], [(20, 24), (40, 43)], [(12, 16)]]
    for first, last in (run for runs in reads for run in runs):
        pool.keys[0][first:last] = torch.randn(last - first, 2, 8)
        pool.values[0][first:last] = torch.randn(last - first, 2, 8)
    view = pool.view(reads, [[(9, 10)], [(42, 43)], [(14, 16)]])
    assert list(view.singles) == [0, 1], "the third has two tokens"
    keys, values, bias = view.gather(0)
    assert keys.shape == values.shape == (2, 7, 2, 8)
    assert keys.isfinite().all()
    assert values.isfinite().all()
    assert torch.equal(keys[0, :2], pool.keys[0][8:10])
    assert torch.equal(values[1], pool.values[0][[20, 21, 22, 23, 40, 41, 42]])
    assert bias[:, 0, 0].tolist() == [[0.0] * 2 + [float("-inf")] * 5, [0.0] * 7]


def test_one_single_alone_and_long_ones_are_read_where_they_lie() -> None:
    pool = poisoned_pool(4 * MOST_GATHERED)
    end = MOST_GATHERED
    short, long = [(0, end)], [(end, 2 * end + 1)]
    last_short, last_long = [(end - 1, end)], [(2 * end, 2 * end + 1)]
    assert list(pool.view([short, long], [last_short, last_long]).singles) == []
    assert list(pool.view([short, long, short], [last_short, last_long, last_short]).singles) == [0, 2]


def test_a_copy_takes_the_first_tokens_of_a_page_in_every_layer() -> None:
    pool = poisoned_pool(16)
    for tensor in (*pool.keys, *pool.values):
        tensor[4:8] = torch.randn(4, 2, 8)
    pool.copy([PageCopy(source=1, target=3, num_tokens=3)])
    for tensor in (*pool.keys, *pool.values):
        assert torch.equal(tensor[12:15], tensor[4:7])
        assert tensor[15].isnan().all()


# The contiguous cache is appended, truncated and read as a plain list would be.


NUM_KV_HEADS, HEAD_DIM, MAX_SEQ_LEN = 2, 4, 24

steps = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6), st.integers(0, 8)), max_size=20)


def random_tokens(num_tokens: int, random: torch.Generator) -> torch.Tensor:
    return torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM, generator=random)


@given(steps)
def test_two_slots_hold_what_lists_of_tokens_would(steps: list[tuple[int, int, int]]) -> None:
    random = torch.Generator().manual_seed(0)
    cache = KVCache(2, MAX_SEQ_LEN, NUM_KV_HEADS, HEAD_DIM, dtype=torch.float32)
    model = [(torch.empty(0, NUM_KV_HEADS, HEAD_DIM), torch.empty(0, NUM_KV_HEADS, HEAD_DIM)) for _ in range(2)]
    for slot, num_tokens, num_forgotten in steps:
        kept = max(0, len(model[slot][0]) - num_forgotten)
        cache.truncate(slot, kept)
        model[slot] = tuple(part[:kept] for part in model[slot])
        if kept + num_tokens > MAX_SEQ_LEN:
            continue
        keys, values = random_tokens(num_tokens, random), random_tokens(num_tokens, random)
        held_keys, held_values = cache.append(slot, keys, values)
        model[slot] = torch.cat((model[slot][0], keys)), torch.cat((model[slot][1], values))
        assert torch.equal(held_keys, model[slot][0].transpose(0, 1))
        assert torch.equal(held_values, model[slot][1].transpose(0, 1))
        assert cache.lengths == [len(keys) for keys, _ in model]


def test_one_cache_a_layer_and_all_are_forgotten_at_once() -> None:
    caches = KVCache.from_model_config(2, MAX_SEQ_LEN, 3, NUM_KV_HEADS, HEAD_DIM, dtype=torch.float32)
    assert len(caches) == 3
    for cache in caches:
        cache.append(1, torch.ones(5, NUM_KV_HEADS, HEAD_DIM), torch.ones(5, NUM_KV_HEADS, HEAD_DIM))
        assert cache.keys.shape == (2, NUM_KV_HEADS, MAX_SEQ_LEN, HEAD_DIM)
    reset_all_caches(caches)
    assert [cache.lengths for cache in caches] == [[0, 0]] * 3


def test_a_pass_on_a_device_without_kernels_neither_pins_memory_nor_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` stands for such a device (a Mac's GPU): it has no kernel of ours, and no value can be read from it."""
    monkeypatch.setattr(engine.weights.parameters, "_hash_tensors", lambda tensors: b"")
    config, device = tiny_config(), torch.device("meta")
    decoder = Decoder(Parameters(config, torch.bfloat16, device))
    pool = KVPool(config, num_pages=8, page_size=16, device=device, dtype=torch.bfloat16)
    batch = Batch.from_chunks([(5, [1, 2, 3]), (0, [4]), (2, [7])], device)
    view = pool.view([[(0, 8)], [(16, 17)], [(32, 35)]], [[(5, 8)], [(16, 17)], [(34, 35)]])
    logits = decoder.logits(decoder.forward_batch(batch, view))
    assert logits.device == device
    assert logits.shape == (5, config.vocab_size)
