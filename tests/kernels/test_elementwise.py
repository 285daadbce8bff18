"""RMSNorm, rotary embedding and SwiGLU against formulations of their own, in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import apply_rope, rope_table
from kernels.swiglu import swiglu

CPU = torch.device("cpu")


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
    with pytest.raises(ValueError, match="not added"):
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
