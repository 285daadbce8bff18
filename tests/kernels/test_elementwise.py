"""RMSNorm, RoPE, its fused write, and SwiGLU, in torch and as kernels, against independent formulas."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import parity
from kernels.native import elementwise
from kernels.op import Shape, Variant
from kernels.rms_norm import add_rms_norm, naive_add_rms_norm, naive_rms_norm, rms_norm
from kernels.rope import apply_rope, naive_rope, rope_table
from kernels.rope_write import OP, Record, rope_write
from kernels.swiglu import naive_swiglu, swiglu
from tests.kernels.devices import CPU, CUDA, INTERPRETED, ON_CARD, ON_EACH

# RMSNorm, RoPE and SwiGLU against formulas in float64.


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_tokens", [1, 7])
@pytest.mark.parametrize("hidden_size", [1, 48, 577])
def test_rms_norm_divides_by_the_root_mean_square(num_tokens: int, hidden_size: int) -> None:
    x, weight, eps = randn(num_tokens, hidden_size) * 30, randn(hidden_size, seed=1), 1e-5
    wide = x.double()
    expected = wide / (wide.pow(2).sum(-1, keepdim=True) / hidden_size + eps).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, eps).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 1.6e-2)])
def test_rms_norm_equals_that_of_torch(dtype: torch.dtype, rtol: float) -> None:
    x, weight = randn(5, 576).to(dtype), randn(576, seed=1).to(dtype)
    expected = torch.nn.functional.rms_norm(x, (576,), weight, 1e-6)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected, rtol=rtol, atol=1e-6)


def test_rms_norm_keeps_rows_of_tiny_numbers_finite() -> None:
    assert rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-6).tolist() == [[0.0] * 8]


def test_rms_norm_of_large_bf16_does_not_overflow() -> None:
    x = torch.full((1, 8), 1e30, dtype=torch.bfloat16).to(torch.float32).clamp(max=1e18).to(torch.bfloat16)
    torch.testing.assert_close(rms_norm(x, torch.ones(8, dtype=torch.bfloat16), 1e-6).float(), torch.ones(1, 8))


@pytest.mark.parametrize("head_dim", [2, 64, 128])
@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_rope_turns_each_pair_as_a_complex_number(head_dim: int, theta: float) -> None:
    cos, sin = rope_table(600, head_dim, theta, CPU)
    positions = torch.tensor([0, 1, 7, 599])
    x = randn(len(positions), 3, head_dim)
    pairs = torch.complex(*x.double().chunk(2, dim=-1))  # GPT-NeoX: dimension i goes with i + head_dim / 2
    frequencies = theta ** (-torch.arange(head_dim // 2).double() * 2 / head_dim)
    turned = pairs * torch.exp(1j * torch.outer(positions.double(), frequencies))[:, None]
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    # The angles are float32: at position 599 their last bit is 6e-5.
    torch.testing.assert_close(apply_rope(x, cos[positions], sin[positions]).double(), expected, rtol=0, atol=3e-4)


def test_rope_divisors_slow_each_frequency_by_its_own() -> None:
    cos, sin = rope_table(64, 8, 1e4, CPU, divisors=(1.0, 2.0, 4.0, 8.0))
    plain_cos, plain_sin = rope_table(64, 8, 1e4, CPU)
    for pair, divisor in enumerate((1, 2, 4, 8)):
        torch.testing.assert_close(cos[::divisor, pair], plain_cos[: 64 // divisor, pair])
        torch.testing.assert_close(sin[::divisor, pair], plain_sin[: 64 // divisor, pair])


def test_rms_norm_of_heads_norms_each_alone() -> None:
    x, weight = randn(3, 4, 16) * 5, randn(16, seed=1)
    rows = rms_norm(x.reshape(12, 16), weight, 1e-6)
    assert torch.equal(rms_norm(x, weight, 1e-6), rows.view(3, 4, 16))


def test_heads_are_normed_in_place_each_by_its_own_weight() -> None:
    fused, weight = randn(3, 6, 16) * 5, randn(4, 16, seed=1)
    expected = fused.clone()
    for head in range(4):
        expected[:, head + 1] = rms_norm(fused[:, head + 1], weight[head], 1e-6)
    part = fused[:, 1:5]
    assert rms_norm(part, weight, 1e-6, out=part) is part
    assert torch.equal(fused, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_is_kept_and_normed_with_the_bits_of_both_alone(dtype: torch.dtype) -> None:
    hidden, delta, weight = randn(5, 577).to(dtype), randn(5, 577, seed=1).to(dtype), randn(577, seed=2).to(dtype)
    expected = hidden + delta
    assert torch.equal(add_rms_norm(hidden, delta, weight, 1e-6), rms_norm(expected, weight, 1e-6))
    assert torch.equal(hidden, expected)


def test_what_does_not_fit_is_refused() -> None:
    x, weight = torch.zeros(2, 8), torch.ones(8)
    with pytest.raises(ValueError, match="does not fit"):
        rms_norm(x, torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="not"):
        rms_norm(x, weight, 1e-6, out=torch.zeros(2, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match="cannot be added"):
        add_rms_norm(x, torch.zeros(1, 8), weight, 1e-6)
    with pytest.raises(ValueError, match="ffn_size"):
        swiglu(torch.zeros(2, 7))


def test_rope_makes_scores_depend_on_distance_alone() -> None:
    cos, sin = rope_table(64, 64, 1e4, CPU)
    query, key = randn(1, 1, 64), randn(1, 1, 64, seed=1)

    def score(query_at: int, key_at: int) -> float:
        turned_query = apply_rope(query, cos[[query_at]], sin[[query_at]])
        turned_key = apply_rope(key, cos[[key_at]], sin[[key_at]])
        return float((turned_query * turned_key).sum())

    assert score(9, 4) == pytest.approx(score(60, 55), abs=1e-3)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-2)


def test_rope_rounds_bf16_once() -> None:
    cos, sin = rope_table(32, 64, 1e4, CPU)
    x = randn(32, 2, 64).to(torch.bfloat16)
    exact = apply_rope(x.to(torch.float32), cos, sin)
    assert torch.equal(apply_rope(x, cos, sin), exact.to(torch.bfloat16))


@pytest.mark.parametrize("ffn_size", [1, 80])
def test_swiglu_gates_the_second_half_by_the_first(ffn_size: int) -> None:
    fused = randn(6, 2 * ffn_size) * 4
    gate, up = fused.double()[:, :ffn_size], fused.double()[:, ffn_size:]
    expected = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(swiglu(fused).double(), expected, rtol=1e-5, atol=1e-6)


# The C++ kernels against the torch operations whose place they take.

needs_native = pytest.mark.skipif(not elementwise.can_run(torch.ones(1)), reason="needs Linux and g++")
NATIVE_DTYPES = [torch.float32, torch.bfloat16]
SIZES = [1, 2, 15, 16, 64, 577, 896]


def assert_nearly_equal(found: Tensor, expected: Tensor) -> None:
    """Equal but for sums in another order: in bf16 a few numbers are rounded the other way."""
    assert found.dtype == expected.dtype
    eps = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, expected, rtol=2 * eps if found.dtype == torch.bfloat16 else 8 * eps, atol=1e-9)
    if found.dtype == torch.bfloat16:
        assert int((found != expected).sum()) <= 0.02 * found.numel()


@needs_native
@pytest.mark.parametrize("dtype", NATIVE_DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_tokens", [0, 1, 7, 90])
def test_norms_by_our_kernel_are_those_of_torch(num_tokens: int, size: int, dtype: torch.dtype) -> None:
    wide = (randn(num_tokens, 5, size) * 3).to(dtype)
    heads, weight = wide[:, 1:4], randn(size, seed=1).to(dtype)
    assert_nearly_equal(rms_norm(heads, weight, 1e-6), naive_rms_norm(heads, weight, 1e-6))
    own = randn(3, size, seed=2).to(dtype)
    expected = naive_rms_norm(heads, own, 1e-6)
    assert_nearly_equal(rms_norm(heads, own, 1e-6, out=heads), expected)
    assert_nearly_equal(wide[:, 1:4], expected)
    hidden, delta = wide[:, 0].contiguous(), wide[:, 4]
    kept = hidden.clone()
    expected = naive_add_rms_norm(kept, delta, weight, 1e-6)
    assert_nearly_equal(add_rms_norm(hidden, delta, weight, 1e-6), expected)
    assert torch.equal(hidden, kept)


@needs_native
@pytest.mark.parametrize("dtype", NATIVE_DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_tokens", [0, 1, 7, 90])
def test_swiglu_by_our_kernel_is_that_of_torch(num_tokens: int, size: int, dtype: torch.dtype) -> None:
    gate_up = (randn(num_tokens, 2 * size + 3) * 6).to(dtype)[:, 1:-2]
    assert_nearly_equal(swiglu(gate_up), naive_swiglu(gate_up))


@needs_native
@pytest.mark.parametrize("dtype", NATIVE_DTYPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 90])
def test_geglu_by_our_kernel_is_that_of_float64(num_tokens: int, dtype: torch.dtype) -> None:
    """Not that of torch in the dtype, whose 1 + tanh loses what is left of gates below -3."""
    gate_up = (randn(num_tokens, 2 * 37) * 6).to(dtype)
    expected, rtol = naive_swiglu(gate_up.double(), "gelu_tanh"), 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(swiglu(gate_up, "gelu_tanh").double(), expected, rtol=rtol, atol=1e-9)
    large = torch.tensor([[200.0, -200.0, 1e30, -1e30, torch.nan, torch.inf, *[1.0] * 6]]).to(dtype)
    found = swiglu(large, "gelu_tanh")[0]
    assert torch.equal(found[:4], large[0, :4].clamp(min=0.0))
    assert found[4].isnan()
    assert found[5].isinf()


@needs_native
@pytest.mark.parametrize("dtype", NATIVE_DTYPES)
def test_swiglu_by_our_kernel_of_very_large_numbers_and_none(dtype: torch.dtype) -> None:
    gates = torch.tensor([200.0, -200.0, 1e30, -1e30, 0.0, torch.nan, torch.inf, -torch.inf, -88.0, 88.0] * 3)
    gate_up = torch.cat([gates, torch.ones(len(gates))]).to(dtype)[None]
    torch.testing.assert_close(swiglu(gate_up), naive_swiglu(gate_up), rtol=1e-6, atol=1e-35, equal_nan=True)


@needs_native
@pytest.mark.parametrize("dtype", NATIVE_DTYPES)
@pytest.mark.parametrize("head_dim", [2, 8, 30, 64, 128])
@pytest.mark.parametrize("num_tokens", [0, 1, 7, 90])
def test_rope_by_our_kernel_has_the_bits_of_torchs(num_tokens: int, head_dim: int, dtype: torch.dtype) -> None:
    cos, sin = rope_table(900, head_dim, 1e6, CPU)
    positions = torch.randperm(900, generator=torch.Generator().manual_seed(0))[:num_tokens]
    heads = randn(num_tokens, 6, head_dim).to(dtype)[:, :4]
    rotations = cos[positions], sin[positions]
    assert torch.equal(apply_rope(heads, *rotations), naive_rope(heads, *rotations))


EPS = 1e-6

MOST_FLIPPED = 0.01
"""Share of numbers whose last bit differs because a float32 did so at a border of rounding: 2^-22 of 2^-11. Where
something is rounded once more or once less, a tenth of all and more do."""

on_each_device = pytest.mark.parametrize("device", ON_EACH, ids=str)
in_each_dtype = pytest.mark.parametrize(
    ("device", "dtype"),
    [
        *(pytest.param(CPU, dtype, marks=INTERPRETED) for dtype in (torch.float32, torch.float16)),
        # Triton 3.9's interpreter cuts bfloat16 off where a card rounds.
        *(pytest.param(CUDA, dtype, marks=ON_CARD) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
    ],
    ids=str,
)


def assert_rounded_alike(actual: Tensor, expected: Tensor) -> None:
    again = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
    actual = actual.cpu()
    assert actual.dtype == expected.dtype, again
    # A bit that flips before the last product, and another in its rounding; float32 has the order of sums besides.
    rtol = 1e-5 if actual.dtype == torch.float32 else 2 * torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-6, msg=lambda text: f"{text}\n{again}")
    if actual.dtype != torch.float32:
        assert (actual != expected).float().mean() <= MOST_FLIPPED, again


@in_each_dtype
def test_a_sum_is_normed_as_it_was_rounded(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """What is added is a slice of something wider."""
    hidden, wide = (torch.randn(7, size, generator=generator).to(dtype) * 3 for size in (577, 600))
    weight = torch.randn(577, generator=generator).to(dtype)
    stream = hidden.to(device, copy=True)
    normed = add_rms_norm(stream, wide.to(device)[:, 5:582], weight.to(device), EPS)
    expected = hidden + wide[:, 5:582]
    assert torch.equal(stream.cpu(), expected)
    assert_rounded_alike(normed, naive_rms_norm(expected, weight, EPS))


@in_each_dtype
@pytest.mark.parametrize("weight_shape", [(96,), (3, 96)])
def test_heads_are_normed_where_they_lie(
    device: torch.device, dtype: torch.dtype, weight_shape: tuple[int, ...], generator: torch.Generator
) -> None:
    """Of a fused projection some heads, in place, by one weight or each by its own; the other heads stay."""
    fused = torch.randn(11, 5, 96, generator=generator).to(dtype) * 3
    weight = torch.randn(weight_shape, generator=generator).to(dtype)
    there = fused.to(device, copy=True)
    part = there[:, 1:4]
    assert rms_norm(part, weight.to(device), EPS, out=part) is part
    assert_rounded_alike(part, naive_rms_norm(fused[:, 1:4], weight, EPS))
    assert torch.equal(there[:, [0, 4]].cpu(), fused[:, [0, 4]])
    assert_rounded_alike(
        rms_norm(fused.to(device)[:, 1:4], weight.to(device), EPS), naive_rms_norm(fused[:, 1:4], weight, EPS)
    )


@on_each_device
def test_rows_of_nothing_and_no_rows(device: torch.device) -> None:
    weight = torch.ones(8, device=device)
    assert rms_norm(torch.zeros(2, 8, device=device), weight, EPS).tolist() == [[0.0] * 8] * 2
    assert rms_norm(torch.zeros(0, 8, device=device), weight, EPS).shape == (0, 8)
    assert swiglu(torch.zeros(0, 8, device=device)).shape == (0, 4)


@in_each_dtype
def test_a_gate_is_rounded_before_it_multiplies(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> None:
    gate_up = torch.randn(5, 620, generator=generator).to(dtype) * 3
    assert_rounded_alike(swiglu(gate_up.to(device)[:, 4:-4]), naive_swiglu(gate_up[:, 4:-4]))


@on_each_device
def test_a_gate_that_is_shut_lets_nothing_through(device: torch.device) -> None:
    with np.errstate(over="ignore"):  # the exponential, to infinity
        found = swiglu(torch.tensor([[-200.0, 200.0, 3.0, 3.0]], device=device))
    assert found.tolist() == [[0.0, 600.0]]


# The rotation and write of new keys and values has the bits of RoPE, on a CPU and in the interpreter.


NUM_SLOTS = 40


def check_write(heads: tuple[int, int, int], slots: list[int], dtype: torch.dtype, generator: torch.Generator) -> None:
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
    check_write(heads, torch.randperm(NUM_SLOTS, generator=generator)[:17].tolist(), dtype, generator)


@pytest.mark.parametrize("slots", [[-1], [-1, 5], [3, -1, -1, 0, 39, -1], []])
def test_a_negative_slot_is_written_nowhere(slots: list[int], generator: torch.Generator) -> None:
    check_write((4, 2, 64), slots, torch.float32, generator)


class TestInterpreted:
    """The kernel, which the wrapper takes in a process with the interpreter."""

    pytestmark = INTERPRETED

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("heads", [(1, 1, 8), (3, 1, 24), (7, 1, 64), (6, 3, 128), (2, 2, 256)])
    def test_has_the_bits_of_rope(
        self, heads: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
    ) -> None:
        check_write(heads, torch.randperm(NUM_SLOTS, generator=generator)[:17].tolist(), dtype, generator)

    @pytest.mark.parametrize("slots", [[-1], [-1, 5], [3, -1, -1, 0, 39, -1], []])
    def test_a_negative_slot_is_written_nowhere(self, slots: list[int], generator: torch.Generator) -> None:
        check_write((4, 2, 64), slots, torch.float16, generator)

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
def test_a_write_that_does_not_fit_is_refused(changed: Mapping[str, object], reason: str) -> None:
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
