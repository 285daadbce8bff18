"""The pool's view of a batch: what it writes, what each sequence reads, and what is gathered side by side."""

from __future__ import annotations

import torch

from engine.kv_cache import PageCopy
from engine.kv_pool import MOST_GATHERED, KVPool
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
