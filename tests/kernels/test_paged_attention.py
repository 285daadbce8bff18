"""Attention over pages equals a loop over the keys that each row sees; what it costs, and which variants run it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.op import Shape, is_interpreting
from kernels.paged_attention import (
    PagedBatch,
    make_causal_key_ends,
    reference,
    run_paged_attention,
    variants,
)
from kernels.paged_attention.batch import Layout, make_layouts
from kernels.paged_attention.op import OP
from tests.kernels.paged_batches import ONE, TINY, assert_near, inputs_of


def places_seen(batch: PagedBatch, row: int, window: int | None) -> list[int]:
    """By the words of `PagedBatch`."""
    end = int(batch.key_ends[row])
    seen = set(range(max(0, end - window) if window else 0, end))
    return sorted(seen)


def by_loop(query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None) -> Tensor:
    """Each row and head by itself, in float64."""
    out = torch.full(query.shape, torch.nan, dtype=torch.float64)
    group = query.shape[1] // pool_keys.shape[1]
    for seq in range(batch.num_seqs):
        for row in range(int(batch.query_starts[seq]), int(batch.query_starts[seq + 1])):
            pages = [divmod(place, batch.page_size) for place in places_seen(batch, row, window)]
            slots = [int(batch.page_table[seq, page]) * batch.page_size + slot for page, slot in pages]
            for head in range(query.shape[1] if slots else 0):
                keys, values = (pool[slots, head // group].double() for pool in (pool_keys, pool_values))
                scores = [float(query[row, head].double() @ key) / math.sqrt(query.shape[2]) for key in keys]
                shares = [math.exp(score - max(scores)) for score in scores]
                found = sum(share * value for share, value in zip(shares, values, strict=True))
                out[row, head] = found / sum(shares)
    return out


REFERENCE_SHAPES: tuple[dict[str, int], ...] = (
    ONE,
    ONE | {"num_seqs": 3, "num_rows": 9, "uneven": 3, "num_kv_heads": 2},
    ONE | {"num_rows": 7, "places": 3, "window": 6},
)


@pytest.mark.parametrize("shape", REFERENCE_SHAPES, ids=str)
def test_the_reference_is_the_loop_over_what_each_row_sees(shape: Shape) -> None:
    inputs = inputs_of(shape, torch.float64)
    assert_near(reference.naive_paged_attention(**inputs), by_loop(**inputs), 1e-12)


@pytest.mark.skipif(is_interpreting(), reason="the interpreter runs the kernel on a CPU")
def test_a_cpu_runs_the_reference() -> None:
    inputs = inputs_of(ONE)
    assert torch.equal(run_paged_attention(**inputs), reference.naive_paged_attention(**inputs))


@pytest.mark.parametrize("shape", [*OP.parity_shapes, *REFERENCE_SHAPES], ids=str)
def test_the_cost_counts_what_rows_see(shape: Shape) -> None:
    inputs = inputs_of(shape)
    batch, num_pairs, num_keys, num_pages = inputs["batch"], 0, 0, 0
    for seq in range(batch.num_seqs):
        rows = range(int(batch.query_starts[seq]), int(batch.query_starts[seq + 1]))
        seen = [places_seen(batch, row, inputs["window"]) for row in rows]
        num_pairs += sum(map(len, seen))
        num_keys += len(set().union(*seen))
        num_pages += len({place // batch.page_size for each in seen for place in each})
    head_numbers = shape["num_kv_heads"] * shape["head_dim"]
    cost = OP.cost(shape, torch.float16)
    assert cost.num_flops == 4 * shape["group"] * head_numbers * num_pairs
    of_floats = 2 * (2 * head_numbers * num_keys + 2 * inputs["query"].numel())
    others = (batch.query_starts, batch.seq_lens, batch.key_ends)
    assert cost.num_bytes == of_floats + 4 * num_pages + sum(each.nbytes for each in others)


def test_scattered_rows_end_each_part_of_a_sequence() -> None:
    (layout,) = make_layouts(ONE | {"num_rows": 6, "num_keys": 30, "places": 3})
    assert layout == Layout(30, (9, 10, 19, 20, 29, 30), window=0)
    assert (layout.num_visible_pairs, layout.num_keys) == (117, 30)


@pytest.mark.parametrize("at", range(len(OP.benchmark_shapes)))
def test_defaults_are_sane(at: int) -> None:
    shape = OP.benchmark_shapes[at]
    assert OP.is_valid(OP.default(shape), shape)


@given(st.integers(1, 1500), st.integers(1, 200_000), st.integers(1, 100), st.data())
def test_a_class_of_shapes_has_one_default(num_rows: int, num_keys: int, num_seqs: int, data: st.DataObject) -> None:
    """What a row finds depends on its batch by the class alone."""
    shape = {**OP.benchmark_shapes[0], "num_rows": num_rows, "num_keys": num_keys, "num_seqs": num_seqs}
    other = dict(shape)
    for name, largest in {"num_rows": 1500, "num_keys": 200_000, "num_seqs": 100}.items():
        other[name] = data.draw(st.integers(1, largest))
        if OP.shape_class(other) != OP.shape_class(shape):
            other[name] = shape[name]
    assert OP.default(other) == OP.default(shape)


def test_classes_are_told_apart_by_their_ends() -> None:
    shape = dict(OP.benchmark_shapes[0])
    names = [
        OP.shape_class(shape | {"num_rows": rows}).partition("rows=")[2].split()[0] for rows in (1, 4, 5, 64, 1025)
    ]
    assert names == ["1", "2..4", "5..16", "33..64", "1025..2048"]


def test_a_launch_fits_the_shared_memory_of_its_card() -> None:
    large = TINY | {"rows": 128, "keys": 128, "num_stages": 3}
    for most, on_hopper in ((227, True), (163, False), (99, False), (64, False)):
        for head_dim, dtype in product((64, 128, 256), (torch.bfloat16, torch.float32)):
            fit = variants.fit_to_card(large, head_dim, dtype, on_hopper, most * 1024)
            needed = variants.count_shared_bytes(fit, head_dim, dtype, on_hopper)
            assert needed <= most * 1024 or (fit["keys"], fit["num_stages"]) == (16, 1)
    assert variants.fit_to_card(large, 64, torch.bfloat16, True, 227 * 1024) == large
    assert variants.fit_to_card(large, 128, torch.bfloat16, False, 99 * 1024) == large | {
        "keys": 64,
        "num_stages": 1,
    }


BROKEN: dict[str, dict[str, Any]] = {
    "query is": {"query": torch.zeros(3, 32)},
    "keys are": {"pool_values": torch.zeros(8, 1, 16)},
    "not a multiple": {
        "query": torch.zeros(3, 3, 16),
        "pool_keys": torch.zeros(64, 2, 16),
        "pool_values": torch.zeros(64, 2, 16),
    },
    "heads are": {"query": torch.zeros(3, 2, 32)},
    "query is torch.float16": {"query": torch.zeros(3, 2, 16, dtype=torch.float16)},
    "a window must be at least 1": {"window": 0},
}
BROKEN_BATCHES: dict[str, dict[str, Any]] = {
    "query_starts is": {"query_starts": torch.zeros(3, dtype=torch.int32)},
    "as many key_ends": {"key_ends": torch.zeros(2, dtype=torch.int32)},
    "max_seq_len is 41": {"max_seq_len": 41},
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_does_not_fit_is_an_error(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_paged_attention(**inputs_of(ONE) | BROKEN[message])


@pytest.mark.parametrize("message", BROKEN_BATCHES)
def test_a_batch_that_does_not_fit_is_an_error(message: str) -> None:
    inputs = inputs_of(ONE)
    with pytest.raises(ValueError, match=message):
        run_paged_attention(**inputs | {"batch": replace(inputs["batch"], **BROKEN_BATCHES[message])})


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of FlexAttention's import
@pytest.mark.parametrize("shape", [REFERENCE_SHAPES[1], REFERENCE_SHAPES[2] | {"window": 0}], ids=str)
def test_torchs_ways_are_the_reference(shape: Shape) -> None:
    inputs = inputs_of(shape)
    ways = OP.torch_baselines(inputs)
    assert ("sdpa" in ways) == ("uneven" not in shape)
    for name in ways.keys() - {"flex_attention"}:  # which compiles for half a minute
        assert_near(ways[name]()[0], OP.reference(inputs)[0], 1e-6)


def test_rows_that_are_a_sequences_last_see_up_to_themselves() -> None:
    assert make_causal_key_ends([2, 1], [5, 3]).tolist() == [4, 5, 3]
