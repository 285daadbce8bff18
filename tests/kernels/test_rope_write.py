"""The rotation and write of new keys and values has the bits of RoPE, on a CPU and in Triton's interpreter alike."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from kernels import parity
from kernels.op import Shape, Variant
from kernels.rope import apply_rope, rope_table
from kernels.rope_write import Record, rope_write
from kernels.rope_write.op import OP
from tests.kernels.devices import CPU, INTERPRETED

NUM_SLOTS = 40


def check(heads: tuple[int, int, int], slots: list[int], dtype: torch.dtype, generator: torch.Generator) -> None:
    """The wrapper against RoPE itself, bit for bit, in pools that stay NaN where no slot is; recorded backwards."""
    num_heads, num_kv_heads, head_dim = heads
    num_rotated = num_heads + num_kv_heads
    fused = torch.randn(len(slots), num_rotated + num_kv_heads, head_dim, generator=generator).to(dtype)
    before = fused.clone()
    positions = torch.randint(0, 1000, (len(slots),), generator=generator)
    cos, sin = (part[positions] for part in rope_table(1000, head_dim, 1e4, CPU))
    actual, expected = (torch.full((4, NUM_SLOTS, num_kv_heads, head_dim), torch.nan, dtype=dtype) for _ in range(2))
    given = fused, cos, sin, torch.tensor(slots, dtype=torch.int64), actual[0], actual[1], num_heads
    query = rope_write(*given)

    rotated = apply_rope(before[:, :num_rotated], cos, sin)
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[0, slot] = rotated[row, num_heads:]
            expected[1, slot] = before[row, num_rotated:]
    assert_same(query, rotated[:, :num_heads])
    assert_same(actual, expected)

    record_slots = slots[::-1]
    query = rope_write(*given, Record(torch.tensor(record_slots, dtype=torch.int64), actual[2], actual[3]))
    for row, slot in enumerate(record_slots):
        if slot >= 0:
            expected[2, slot] = before[row, num_heads:num_rotated]
            expected[3, slot] = before[row, num_rotated:]
    assert_same(query, rotated[:, :num_heads])
    assert_same(actual, expected)
    assert_same(fused, before)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    again = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{text}\n{again}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(1, 1, 8), (7, 1, 64), (6, 2, 128)])
def test_has_the_bits_of_rope(heads: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
    check(heads, torch.randperm(NUM_SLOTS, generator=generator)[:17].tolist(), dtype, generator)


@pytest.mark.parametrize("slots", [[-1], [-1, 5], [3, -1, -1, 0, 39, -1], []])
def test_a_negative_slot_is_written_nowhere(slots: list[int], generator: torch.Generator) -> None:
    check((4, 2, 64), slots, torch.float32, generator)


class TestInterpreted:
    """The kernel, which the wrapper takes in a process with the interpreter."""

    pytestmark = INTERPRETED

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("heads", [(1, 1, 8), (3, 1, 24), (7, 1, 64), (6, 3, 128), (2, 2, 256)])
    def test_has_the_bits_of_rope(
        self, heads: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
    ) -> None:
        check(heads, torch.randperm(NUM_SLOTS, generator=generator)[:17].tolist(), dtype, generator)

    @pytest.mark.parametrize("slots", [[-1], [-1, 5], [3, -1, -1, 0, 39, -1], []])
    def test_a_negative_slot_is_written_nowhere(self, slots: list[int], generator: torch.Generator) -> None:
        check((4, 2, 64), slots, torch.float16, generator)

    @pytest.mark.parametrize("blocks", [(1, 8), (2, 4), (16, 2)])
    @pytest.mark.parametrize("shape", OP.parity_shapes, ids=str)
    def test_every_tile_is_right(self, shape: Shape, blocks: tuple[int, int]) -> None:
        variant = {"block_tokens": blocks[0], "block_heads": blocks[1], "num_warps": 4, "num_stages": 1}
        parity.assert_equal(OP, shape, torch.float32, CPU, variant)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [*OP.parity_shapes, *OP.benchmark_shapes], ids=str)
def test_is_right_on_a_card(shape: Shape, dtype: torch.dtype) -> None:
    parity.assert_equal(OP, shape, dtype, torch.device("cuda"))


@pytest.mark.parametrize("shape", [*OP.parity_shapes, *OP.benchmark_shapes], ids=str)
def test_the_default_is_a_variant_of_the_space(shape: Shape) -> None:
    variant: Variant = OP.default(shape)
    assert all(variant[name] in values for name, values in OP.space.items())
    assert OP.is_valid(variant, shape)


def test_a_draft_of_another_length_compiles_nothing() -> None:
    of_64, *others = (OP.default({**OP.benchmark_shapes[0], "num_tokens": each}) for each in (64, 1, 3, 16, 200, 512))
    assert all(each == of_64 for each in others)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"num_heads": 3}, "8 heads are not 3"),
        ({"cos": torch.zeros(5, 16)}, "angles"),
        ({"slots": torch.zeros(4, dtype=torch.int64)}, "slots"),
        ({"pool_values": torch.zeros(9, 2, 64)}, "do not fit"),
        ({"heads": torch.zeros(5, 8, 64).half()}, "heads are torch.float16"),
        ({"record": Record(torch.arange(5), torch.zeros(9, 2, 64), torch.zeros(8, 2, 64))}, "do not fit"),
        ({"record": Record(torch.arange(4), torch.zeros(9, 2, 64), torch.zeros(9, 2, 64))}, "slots"),
        ({"cos": torch.zeros(1, 32).expand(5, 32)}, "contiguous"),
        ({"heads": torch.zeros(5, 8, 128)[..., ::2]}, "contiguous"),
    ],
)
def test_what_does_not_fit_is_refused(changed: Mapping[str, object], reason: str) -> None:
    fitting = {
        "heads": torch.zeros(5, 8, 64),
        "cos": torch.zeros(5, 32),
        "sin": torch.zeros(5, 32),
        "slots": torch.arange(5),
        "pool_keys": torch.zeros(10, 2, 64),
        "pool_values": torch.zeros(10, 2, 64),
        "num_heads": 4,
    }
    rope_write(**fitting)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=reason):
        rope_write(**{**fitting, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("is_recorded", [0, 1])
def test_the_cost_is_what_tensors_hold(is_recorded: int, generator: torch.Generator) -> None:
    """Counted from the inputs and outputs themselves."""
    shape = {"num_tokens": 9, "num_heads": 6, "num_kv_heads": 3, "head_dim": 64, "is_recorded": is_recorded}
    inputs = OP.inputs(shape, torch.bfloat16, CPU, generator)
    read = [inputs[name] for name in ("heads", "cos", "sin", "slots")]
    query, *pools = OP.reference(inputs)
    slots = [inputs["record"].slots] if is_recorded else []
    moved = (*read, *slots, query, *[each[:9] for each in pools])
    assert OP.cost(shape, torch.bfloat16).num_bytes == sum(each.nbytes for each in moved)
