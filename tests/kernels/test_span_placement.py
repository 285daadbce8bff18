"""Stored keys and values come to their slots with the bits of RoPE; nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import parity
from kernels.attention import Scratch
from kernels.op import Shape, is_interpreting
from kernels.rope import apply_rope, rope_table
from kernels.span_placement import host, move_layers, place, place_layers
from kernels.span_placement.op import OP
from kernels.span_placement.op import naive_place as reference_place
from tests.kernels.devices import CPU, INTERPRETED

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
    monkeypatch.setattr(host, "TOKENS", tokens)
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


def layers(
    num_layers: int, num_tokens: int, row: tuple[int, int], dtype: torch.dtype, generator: torch.Generator
) -> dict[str, Any]:
    """What `place_layers` takes, between any slots, in pools that are NaN."""
    keys, values = torch.randn(2, num_layers, 60, *row, generator=generator).to(dtype)
    pools = torch.full((2, num_layers, 50, *row), torch.nan, dtype=dtype)
    positions = torch.randint(0, 1000, (num_tokens,), generator=generator)
    cos, sin = (part[positions] for part in rope_table(1000, row[1], 1e4, CPU))
    return {
        "keys": keys.unbind(),
        "values": values.unbind(),
        "source_slots": torch.randint(0, 60, (num_tokens,), generator=generator),
        "cos": cos,
        "sin": sin,
        "pool_keys": pools[0].unbind(),
        "pool_values": pools[1].unbind(),
        "target_slots": torch.randperm(50, generator=generator)[:num_tokens],
    }


def place_by_reference(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with pools of their own, in which the reference has placed everything."""
    expected = {**given, **{name: [each.clone() for each in given[name]] for name in ("pool_keys", "pool_values")}}
    OP.reference(expected)
    return expected


def assert_same_pools(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Bit for bit, layer by layer; so all else of the pools has stayed as it was."""
    again = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
    for name in ("pool_keys", "pool_values"):
        for layer, (own, right) in enumerate(zip(actual[name], expected[name], strict=True)):
            torch.testing.assert_close(
                own, right, rtol=0, atol=0, equal_nan=True, msg=lambda text, at=(name, layer): f"{at}: {text}\n{again}"
            )


def check_layers(given: dict[str, Any]) -> None:
    expected = place_by_reference(given)
    place_layers(**given, scratch=Scratch())
    assert_same_pools(given, expected)


ROWS = [(1, 8), (3, 24), (2, 64), (1, 256)]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layer_is_placed(row: tuple[int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
    check_layers(layers(3, 17, row, dtype, generator))


class TestInterpreted:
    """The kernel, which the wrapper takes in a process with the interpreter."""

    pytestmark = INTERPRETED

    @pytest.mark.parametrize("row", ROWS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_every_layer_is_placed(self, row: tuple[int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
        check_layers(layers(3, 17, row, dtype, generator))

    @pytest.mark.parametrize(("num_layers", "num_tokens"), [(1, 0), (1, 1), (5, 1), (4, 4), (5, 9)])
    def test_borders_of_blocks(self, num_layers: int, num_tokens: int, generator: torch.Generator) -> None:
        check_layers(layers(num_layers, num_tokens, (2, 16), torch.float32, generator))

    @pytest.mark.parametrize("blocks", [(1, 1, 1), (4, 2, 2), (8, 1, 8), (16, 4, 4)])
    @pytest.mark.parametrize("shape", OP.parity_shapes, ids=str)
    def test_every_tile_is_right(self, shape: Shape, blocks: tuple[int, int, int]) -> None:
        names = ("block_tokens", "block_heads", "block_layers")
        variant = {**dict(zip(names, blocks, strict=True)), "num_warps": 4, "num_stages": 1}
        parity.assert_equal(OP, shape, torch.float32, CPU, variant)

    def test_other_pages_of_the_pool_move_by_an_angle(self, generator: torch.Generator) -> None:
        """Keys that stand at 5, 6, 7 come to 105, 106, 107, and back to where they were."""
        cos, sin = rope_table(200, 64, 1e4, CPU)
        before = torch.randn(3, 2, 64, generator=generator)
        pool = torch.full((2, 20, 2, 64), torch.nan)
        at, moved, back = torch.tensor([4, 0, 9]), torch.tensor([7, 19, 1]), torch.tensor([3, 2, 15])
        pool[0, at], pool[1, at] = apply_rope(before, cos[5:8], sin[5:8]), before
        by = cos[[100] * 3], sin[[100] * 3]
        place(*pool, at, *by, *pool, moved, Scratch())
        place(*pool, moved, by[0], -by[1], *pool, back, Scratch())
        # An angle is a product of float32: near 100 it is off by up to 3.8e-6, and a pair of numbers turns by as much.
        bound = 1e-5 * before.view(3, 2, 2, 32).norm(dim=2).repeat(1, 1, 2)
        assert ((pool[0, moved] - apply_rope(before, cos[105:108], sin[105:108])).abs() <= bound).all()
        assert ((pool[0, back] - pool[0, at]).abs() <= bound).all()
        assert torch.equal(pool[1, moved], before)
        assert torch.equal(pool[1, back], before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [*OP.parity_shapes, *OP.benchmark_shapes[:2], *OP.benchmark_shapes[3:5]], ids=str)
def test_is_right_on_a_card(shape: Shape, dtype: torch.dtype) -> None:
    parity.assert_equal(OP, shape, dtype, torch.device("cuda"))


@pytest.mark.parametrize("shape", [*OP.parity_shapes, *OP.benchmark_shapes], ids=str)
def test_the_default_is_a_variant_of_the_space(shape: Shape) -> None:
    variant = OP.default(shape)
    assert all(variant[name] in values for name, values in OP.space.items())
    assert OP.is_valid(variant, shape)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"values": [torch.zeros(9, 2, 64)]}, "2 and 1 layers"),
        ({"cos": torch.zeros(5, 64)}, "angles"),
        ({"target_slots": torch.arange(4)}, "4 target slots"),
        ({"sin": torch.zeros(1, 32).expand(5, 32)}, "slots and angles"),
        ({"keys": [torch.zeros(9, 2, 64).half()] * 2}, "torch.float16, are not contiguous rows"),
        ({"pool_values": [torch.zeros(9, 2, 128)[..., ::2]] * 2}, "are not contiguous rows"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], reason: str) -> None:
    stored = [torch.zeros(9, 2, 64)] * 2
    slots, angles = torch.arange(5), torch.zeros(5, 32)
    fitting = {"keys": stored, "values": stored, "source_slots": slots, "cos": angles, "sin": angles}
    fitting |= {"pool_keys": stored, "pool_values": stored, "target_slots": slots}
    with pytest.raises(ValueError, match=reason):
        place_layers(**{**fitting, **changed}, scratch=Scratch())


def test_the_cost_is_what_tensors_hold() -> None:
    """Counted from the inputs and outputs themselves."""
    shape = {"num_tokens": 9, "num_layers": 3, "num_kv_heads": 2, "head_dim": 64}
    inputs = OP.inputs(shape, torch.bfloat16, CPU, torch.Generator())
    moved = [inputs[name][:, :9] for name in ("keys", "values", "pool_keys", "pool_values")]
    read = [inputs[name] for name in ("cos", "sin", "source_slots", "target_slots")]
    assert OP.cost(shape, torch.bfloat16).num_bytes == sum(each.nbytes for each in (*moved, *read))


# Rows that move within a pool arrive as they were, also where they overlap.


POOL_SLOTS = 300


def check_move(
    source: list[int], target: list[int], dtype: torch.dtype, row: tuple[int, int], device: str = "cpu"
) -> None:
    """Against a copy of the whole pool."""
    seed = parity.get_run_seed()
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(2, 3, POOL_SLOTS, *row, generator=generator).to(dtype).to(device)
    expected = pool.clone()
    expected[:, :, target] = pool[:, :, source]
    slots = (torch.tensor(each, dtype=torch.int64, device=device) for each in (source, target))
    move_layers(*(part.unbind() for part in pool), *slots)
    assert torch.equal(pool, expected), f"{parity.SEED_VARIABLE}={seed} draws this again"


MOVES = [
    ([7], [0]),
    ([*range(5, 21)], [*range(3, 19)]),
    ([*range(3, 20)], [*range(5, 22)]),
    ([9, 8, 4, 1], [1, 4, 9, 8]),
    ([2, 2, 2], [0, 1, 2]),
    ([*range(30, 286)], [*range(31, 287)]),
    ([*range(1, 299)], [*range(298)]),
    ([], []),
]


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_arrives_as_it_was(source: list[int], target: list[int]) -> None:
    check_move(source, target, torch.bfloat16, (2, 16))


@pytest.mark.interpreted
@pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported")
class TestMovesInterpreted:
    """The kernel, which the wrapper takes in a process with the interpreter."""

    @pytest.mark.parametrize(("source", "target"), MOVES)
    def test_arrives_as_it_was(self, source: list[int], target: list[int]) -> None:
        check_move(source, target, torch.float16, (2, 16))

    @pytest.mark.parametrize("row", [(1, 3), (3, 64), (1, 256)])
    def test_rows_of_any_width(self, row: tuple[int, int]) -> None:
        check_move([5, 4, 3], [4, 3, 2], torch.float32, row)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("row", [(1, 3), (4, 128)])
@pytest.mark.parametrize(("source", "target"), MOVES)
def test_arrives_on_a_card_as_it_was(source: list[int], target: list[int], row: tuple[int, int]) -> None:
    check_move(source, target, torch.bfloat16, row, "cuda")


# The store may be in host memory.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_card_places_from_pinned_host_memory_as_from_its_own(generator: torch.Generator) -> None:
    given = layers(3, 50, (2, 16), torch.bfloat16, generator)
    card = torch.device("cuda")
    near = {
        name: value.to(card) if isinstance(value, Tensor) else [each.to(card) for each in value]
        for name, value in given.items()
    }
    far = {**near, **{name: [each.pin_memory() for each in given[name]] for name in ("keys", "values")}}
    far |= {name: [each.clone() for each in near[name]] for name in ("pool_keys", "pool_values")}
    place_layers(**near, scratch=Scratch())
    place_layers(**far, scratch=Scratch())
    assert_same_pools(far, near)
    with pytest.raises(ValueError, match="must be pinned for a card"):
        place_layers(**{**far, "keys": given["keys"]}, scratch=Scratch())
