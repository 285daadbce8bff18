"""The memory of the span store: what is written in slots lies there, and too much of it is refused."""

from __future__ import annotations

import pytest
import torch

from engine.errors import EngineError
from engine.reuse.store import SpanStore
from tests.engine.reuse.store.stores import CONFIG, CPU, TOKEN_BYTES, remembered, store_of, text


def test_what_is_written_is_found_in_all_layers() -> None:
    store = store_of(1000)
    kept = remembered(store, text(0, 400))
    (match,) = store.find(b"root", text(0, 400), 100)
    for layer in range(CONFIG.num_layers):
        assert torch.equal(store.keys[layer][match.slots], kept.keys[layer, 100:399])
        assert torch.equal(store.values[layer][match.slots], kept.values[layer, 100:399])
    store.check_integrity()
    assert store.stats().num_bytes == 400 * TOKEN_BYTES


def test_it_takes_as_many_tokens_as_its_bytes_hold() -> None:
    store = SpanStore(CONFIG, torch.bfloat16, CPU, capacity_bytes=10 * TOKEN_BYTES + TOKEN_BYTES - 1)
    assert store.num_slots == 10
    assert store.reserve(11) is None
    slots = store.reserve(10)
    assert slots is not None
    store.give_back(slots)
    store.check_integrity()


def test_too_few_bytes_and_too_many_are_refused() -> None:
    with pytest.raises(EngineError, match="takes 256"):
        SpanStore(CONFIG, torch.bfloat16, CPU, capacity_bytes=TOKEN_BYTES - 1)
    with pytest.raises(EngineError, match="no memory for 1000000000"):
        SpanStore(CONFIG, torch.bfloat16, CPU, capacity_bytes=10**18)
