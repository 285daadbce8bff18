"""Quantised projections: as near to the weights as their step allows, and products of exactly what they store."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import WeightsError
from engine.layers import DecoderWeights
from engine.layers.decoder_weights import build_fastest, build_quantiser
from engine.layers.linear import INT4_MOST_DIRECT_ROWS, Int4, Int8, Quantization, UnpackingBuffer
from tests.engine.layers.test_projections import random_tensor
from tests.engine.tiny import tiny_config, tiny_parameters

SCHEMES: dict[Quantization, type[Int8] | type[Int4]] = {"int8": Int8, "int4": Int4}
DTYPES = [torch.bfloat16, torch.float32, torch.float16]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(
    num_rows=st.sampled_from([0, 1, 2, 7, 24, 25, 40, 41, 90]),
    in_groups=st.integers(1, 4),
    out_groups=st.integers(1, 6),
    biased=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    buffer_rows=st.sampled_from([1, 5, 1000]),
)
def test_the_product_is_that_of_the_stored_weights(
    scheme: Quantization,
    num_rows: int,
    in_groups: int,
    out_groups: int,
    biased: bool,
    dtype: torch.dtype,
    buffer_rows: int,
) -> None:
    in_features, out_features = 32 * in_groups, 16 * out_groups
    weight = random_tensor(out_features, in_features, dtype=dtype)
    bias = random_tensor(out_features, seed=1, dtype=dtype) if biased else None
    x = random_tensor(num_rows, in_features, seed=2, dtype=dtype)
    projection = SCHEMES[scheme](weight, bias, UnpackingBuffer(dtype, buffer_rows * in_features))
    actual = projection(x)
    assert actual.dtype == dtype
    assert actual.shape == (num_rows, out_features)
    stored, exact_bias = projection.dequantise().double(), 0.0 if bias is None else bias.double()
    product = x.double() @ stored.T
    # A rounding of the product, one by the scale and one by the bias.
    eps = torch.finfo(dtype).eps
    bound = 1.5 * eps * (product.abs() + (product + exact_bias).abs()) + 1e-6 * in_features
    bound = bound + 1e-6 * x.double().abs() @ stored.abs().T
    assert ((actual.double() - (product + exact_bias)).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_rows_run_the_weights_that_one_row_runs(scheme: Quantization, dtype: torch.dtype) -> None:
    """Within the order of the sums, as with dense weights: else a draft is verified by another model than wrote it."""
    weight = (0.02 * random_tensor(64, 896, dtype=torch.float32)).to(dtype)
    x = random_tensor(INT4_MOST_DIRECT_ROWS + 8, 896, seed=1, dtype=dtype)
    projection = SCHEMES[scheme](weight, None, UnpackingBuffer(dtype))
    together, alone = (each.double() for each in (projection(x), torch.cat([projection(row[None]) for row in x])))
    assert (together - alone).norm() <= max(0.1 * torch.finfo(dtype).eps, 1e-6) * alone.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@given(scale=st.sampled_from([1e-6, 0.02, 1.0, 300.0]), mean=st.sampled_from([0.0, 1.0, 30.0]), seed=st.integers(0, 99))
def test_every_weight_that_is_stored_in_int4_is_a_number_of_the_dtype(
    dtype: torch.dtype, scale: float, mean: float, seed: int
) -> None:
    weight = (scale * (mean + random_tensor(16, 64, seed=seed))).to(dtype)
    projection = Int4(weight, None, UnpackingBuffer(dtype, 64 * 16))
    stored = projection.dequantise()
    assert torch.equal(stored, stored.to(dtype).float())
    block = torch.empty(16, 64, dtype=dtype)
    projection._unpack(0, 16, block, torch.empty(16, 32, dtype=torch.int8))
    assert torch.equal(block.float(), stored)


def test_int8_in_float16_does_not_overflow_where_the_product_does_not() -> None:
    weight, x = torch.full((16, 1024), 0.5, dtype=torch.float16), torch.full((80, 1024), 10.0, dtype=torch.float16)
    projection = Int8(weight, None, UnpackingBuffer(torch.float16))
    for rows in (x, x[:1]):
        assert torch.allclose(projection(rows), torch.tensor(5120.0, dtype=torch.float16), rtol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_off_by_half_a_step_of_each_outputs_own_scale(dtype: torch.dtype) -> None:
    weight = (random_tensor(48, 64) * torch.logspace(-3, 1, 48)[:, None]).to(dtype)
    stored = Int8(weight, None, UnpackingBuffer(dtype, 64)).dequantise()
    steps = weight.float().abs().amax(dim=1, keepdim=True) / 127
    eps = torch.finfo(dtype).eps  # of the scale: as large as 127 / 2 times that at the ends
    assert ((stored - weight.float()).abs() <= steps * (0.501 + 64 * eps)).all()
    assert ((stored - weight.float()).abs() > 0.4 * steps).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_int4_is_off_by_half_a_step_of_each_groups_own_range(dtype: torch.dtype) -> None:
    weight = (3.0 + random_tensor(32, 96) * torch.logspace(-1, 1, 3).repeat_interleave(32)).to(dtype)
    stored = Int4(weight, None, UnpackingBuffer(dtype, 96)).dequantise()
    groups = weight.float().view(32, 3, 32)
    steps = (groups.amax(dim=2) - groups.amin(dim=2)) / 15
    error = (stored - weight.float()).abs().view(32, 3, 32)
    largest = groups.abs().amax(dim=2, keepdim=True) + 8 * steps[..., None]
    assert (error <= 0.501 * steps[..., None] + torch.finfo(dtype).eps * largest).all()
    assert (error > 0.4 * steps[..., None]).any()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_matrix_quantised_in_pieces_is_the_same_and_rows_may_be_a_view_with_gaps(
    scheme: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = random_tensor(80, 64), random_tensor(9, 256, seed=1)[::2, 64:128]
    whole = SCHEMES[scheme](weight, None, UnpackingBuffer(torch.float32, 64))
    monkeypatch.setattr(f"engine.layers.linear.{scheme.upper()}_ROWS_AT_A_TIME", 32)
    pieces = SCHEMES[scheme](weight, None, UnpackingBuffer(torch.float32, 64))
    assert torch.equal(pieces.dequantise(), whole.dequantise())
    torch.testing.assert_close(whole(x), F.linear(x, whole.dequantise()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_of_one_value_and_zeros_are_kept(scheme: Quantization) -> None:
    weight = torch.zeros(32, 64)
    weight[:16] = 0.75
    stored = SCHEMES[scheme](weight, None, UnpackingBuffer(torch.float32, 64)).dequantise()
    torch.testing.assert_close(stored, weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_rows", [1, INT4_MOST_DIRECT_ROWS + 1])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_damaged_weight_is_not_hidden(scheme: Quantization, fault: float, num_rows: int) -> None:
    weight = random_tensor(16, 32)
    weight[3, 7] = fault
    product = SCHEMES[scheme](weight, None, UnpackingBuffer(torch.float32, 512))(torch.ones(num_rows, 32))
    assert not product[:, 3].isfinite().any()
    assert product[:, 4].isfinite().all()


@pytest.mark.parametrize(("scheme", "bits"), [("int8", 8), ("int4", 4)])
def test_a_row_reads_that_many_bits_a_weight_and_the_scales(scheme: Quantization, bits: int) -> None:
    weight, bias = random_tensor(64, 128, dtype=torch.bfloat16), random_tensor(64, dtype=torch.bfloat16)
    projection = build_quantiser(scheme, UnpackingBuffer(torch.bfloat16))(weight, bias)
    scales = 64 if scheme == "int8" else 64 * 4 * 2
    assert projection.num_bytes == 64 * 128 * bits // 8 + 2 * scales + 2 * 64
    assert projection.out_features == 64


@pytest.mark.parametrize(
    ("scheme", "shape"), [("int8", (40, 32)), ("int8", (32, 40)), ("int4", (40, 32)), ("int4", (32, 48))]
)
def test_a_shape_that_the_kernel_would_read_beyond_is_left_as_it_is(
    scheme: Quantization, shape: tuple[int, int]
) -> None:
    weight, x = random_tensor(*shape), random_tensor(3, shape[1], seed=1)
    projection = build_quantiser(scheme, UnpackingBuffer(torch.float32))(weight, None)
    assert type(projection) is type(build_fastest(weight))
    torch.testing.assert_close(projection(x), F.linear(x, weight))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tied", [False, True])
def test_all_projections_of_a_decoder_are_quantised_and_its_embedding_is_not(scheme: Quantization, tied: bool) -> None:
    config = tiny_config(ffn_size=64, tied_embeddings=tied)
    weights = DecoderWeights.from_parameters(tiny_parameters(config), scheme)
    for layer in weights.layers:
        for projection in (layer.qkv, layer.attention_out, layer.gate_up, layer.down):
            assert type(projection) is SCHEMES[scheme]
    assert type(weights.lm_head) is Int8, "four bits are too few for the LM head"
    assert torch.equal(weights.embedding, tiny_parameters(config).embedding)


def test_quantised_weights_elsewhere_than_on_a_cpu_are_refused() -> None:
    parameters = tiny_parameters(tiny_config())
    parameters.embedding = parameters.embedding.to("meta")
    with pytest.raises(WeightsError, match="int8 weights are for CPUs; load the model unquantised on meta"):
        DecoderWeights.from_parameters(parameters, "int8")
