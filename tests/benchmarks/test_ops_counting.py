"""What ops say that they move and compute, against counts over their inputs and outputs, one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.op import Inputs, Op, Shape, load_op
from kernels.paged_attention.batch import make_mask

DTYPE = torch.bfloat16


def each_shape(*names: str) -> list[Any]:
    return [
        pytest.param(op, shape, id=f"{op.name}-{number}")
        for op in map(load_op, names)
        for number, shape in enumerate(op.parity_shapes)
    ]


def drawn(op: Op, shape: Shape) -> Inputs:
    return op.inputs(shape, DTYPE, torch.device("cpu"), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("op", "shape"), each_shape("rms_norm", "swiglu"))
def test_rows_are_read_and_written_once(op: Op, shape: Shape) -> None:
    inputs = drawn(op, shape)
    read = sum(value.numel() for value in inputs.values() if isinstance(value, Tensor))
    written = sum(output.numel() for output in op.reference(inputs))
    assert op.cost(shape, DTYPE).num_bytes == 2 * (read + written)


@pytest.mark.parametrize(("op", "shape"), each_shape("accept"))
def test_logits_are_read_once_and_few_words_written(op: Op, shape: Shape) -> None:
    inputs = drawn(op, shape)
    logits, draft, starts, draws = (inputs[name] for name in ("logits", "draft", "row_starts", "draws"))
    read = 2 * logits.numel() + 8 * len(draft) + 4 * len(starts)
    if draws is not None:
        read += draws.temperatures.nbytes + draws.numbers.nbytes
    outputs = op.reference(inputs)
    assert [len(output) for output in outputs] == [len(draft)] * 4 + [len(starts) - 1]
    assert op.cost(shape, DTYPE).num_bytes == read + 4 * sum(map(len, outputs))


@pytest.mark.parametrize(("op", "shape"), each_shape("paged_attention"))
def test_a_product_is_counted_for_each_row_and_what_it_sees(op: Op, shape: Shape) -> None:
    """Row by row, what the reference lets it see; the keys that anyone sees are read once for their KV head."""
    inputs = drawn(op, shape)
    batch, query, keys = inputs["batch"], inputs["query"], inputs["pool_keys"]
    starts, pairs, places = batch.query_starts.tolist(), 0, 0
    for index, seq_len in enumerate(batch.seq_lens.tolist()):
        seen = make_mask(batch, index, slice(starts[index], starts[index + 1]), seq_len, inputs["window"])
        pairs += int(seen.sum())
        places += int(seen.any(0).sum())
    _, num_heads, head_dim = query.shape
    counted = op.cost(shape, DTYPE)
    assert counted.num_flops == 2 * 2 * pairs * num_heads * head_dim
    data = 2 * (2 * places * keys.shape[1] * head_dim + 2 * query.numel())
    pages = sum(-(-seq_len // batch.page_size) for seq_len in batch.seq_lens.tolist())
    told = 4 * (len(query) + 2 * batch.num_seqs + 1 + pages)
    assert data <= counted.num_bytes <= data + told
