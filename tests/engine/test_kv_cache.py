"""The KV cache: appended, truncated and read as a plain list would be."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.decoder import KVCache, reset_all_caches

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
