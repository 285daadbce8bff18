"""Linear layers: packed weights give what plain ones give, quantised ones what they store."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import WeightsError
from engine.layers import DecoderWeights, decoder_weights, linear
from engine.layers.decoder_weights import build_fastest, build_quantiser
from engine.layers.linear import (
    INT4_MOST_DIRECT_ROWS,
    Dense,
    Int4,
    Int8,
    Packed,
    Quantization,
    UnpackingBuffer,
    can_pack,
)
from engine.weights import Parameters
from tests.engine.tiny import QWEN3, tiny_config, tiny_parameters

# Packed weights.


needs_packing = pytest.mark.skipif(
    not can_pack("cpu", torch.float32), reason="this machine's torch cannot pack weights"
)


def random_tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def probed_anew() -> Iterator[None]:
    can_pack.cache_clear()
    yield
    can_pack.cache_clear()


@needs_packing
@given(
    num_rows=st.integers(0, 70),
    in_features=st.integers(1, 100),
    out_features=st.integers(1, 100),
    biased=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_packed_gives_what_plain_gives_in_every_shape(
    num_rows: int, in_features: int, out_features: int, biased: bool, dtype: torch.dtype
) -> None:
    if not can_pack("cpu", dtype):
        return
    weight = random_tensor(out_features, in_features, dtype=dtype)
    bias = random_tensor(out_features, seed=1, dtype=dtype) if biased else None
    x = random_tensor(num_rows, in_features, seed=2, dtype=dtype)
    plain, fast = Dense(weight, bias), Packed(weight, bias)
    actual, expected = fast(x), plain(x)
    assert actual.dtype == dtype
    assert actual.shape == (num_rows, out_features)
    # Both round the sum of the products once to `dtype`, after adding in float32 in an order of their own.
    sum_of_products = F.linear(x.abs().double(), weight.abs().double()) + (0 if bias is None else bias.abs().double())
    rounding = torch.finfo(dtype).eps * expected.abs().double()
    assert ((actual.double() - expected.double()).abs() <= rounding + 1e-6 * in_features * sum_of_products).all()
    assert (fast.out_features, fast.num_bytes) == (plain.out_features, plain.num_bytes)
    assert plain.num_bytes == dtype.itemsize * out_features * (in_features + biased)


@needs_packing
def test_rows_may_be_a_view_with_gaps() -> None:
    weight, x = random_tensor(24, 16), random_tensor(9, 64, seed=1)
    torch.testing.assert_close(Packed(weight)(x[::2, 16:32]), F.linear(x[::2, 16:32], weight))


def test_what_cannot_be_packed_is_left_plain(monkeypatch: pytest.MonkeyPatch, probed_anew: None) -> None:
    assert not can_pack("cpu", torch.float64), "oneDNN has no float64"
    assert isinstance(build_fastest(random_tensor(4, 4, dtype=torch.float64)), Dense)
    assert not can_pack("meta", torch.float32)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    can_pack.cache_clear()
    assert isinstance(build_fastest(random_tensor(4, 4)), Dense)


@needs_packing
@pytest.mark.parametrize("fault", [RuntimeError("fp16 path needs"), AttributeError("no such operator"), None])
def test_a_machine_that_refuses_or_miscalculates_gets_plain_weights(
    monkeypatch: pytest.MonkeyPatch, probed_anew: None, fault: Exception | None
) -> None:
    class Faulty(Packed):
        def __call__(self, x: Tensor) -> Tensor:
            if fault is not None:
                raise fault
            return super().__call__(x) + 1.0

    assert isinstance(build_fastest(random_tensor(4, 4)), Packed)
    can_pack.cache_clear()
    monkeypatch.setattr(linear, "Packed", Faulty)
    assert isinstance(build_fastest(random_tensor(4, 4)), Dense)


@needs_packing
def test_no_memory_for_the_packed_copy_is_a_fault_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(decoder_weights, "Packed", no_memory)
    with pytest.raises(WeightsError, match=r"no memory to pack 0\.0 GB; take a smaller model"):
        DecoderWeights.from_parameters(tiny_parameters(tiny_config()))


@pytest.mark.parametrize(
    "changes", [{}, {"tied_embeddings": True}, QWEN3 | {"head_dim": 16}], ids=["untied", "tied", "qwen3"]
)
def test_every_projection_is_where_it_belongs(changes: dict[str, Any]) -> None:
    config = tiny_config(**changes)
    parameters, weights = (tiny_parameters(config), DecoderWeights.from_parameters(tiny_parameters(config)))
    assert weights.config == config
    assert (weights.dtype, weights.device) == (torch.float32, torch.device("cpu"))
    hidden, attended, inner = (random_tensor(3, size) for size in (32, 4 * config.head_dim, config.ffn_size))
    for plain, layer in zip(parameters.layers, weights.layers, strict=True):
        torch.testing.assert_close(layer.qkv(hidden), F.linear(hidden, plain.qkv, plain.qkv_bias))
        torch.testing.assert_close(layer.attention_out(attended), F.linear(attended, plain.attention_out))
        torch.testing.assert_close(layer.gate_up(hidden), F.linear(hidden, plain.gate_up))
        torch.testing.assert_close(layer.down(inner), F.linear(inner, plain.down))
        assert torch.equal(layer.attention_norm, plain.attention_norm)
        assert torch.equal(layer.ffn_norm, plain.ffn_norm)
        if plain.query_norm is None or plain.key_norm is None:
            assert layer.head_norms is plain.query_norm is plain.key_norm is None
        else:
            norms = [plain.query_norm] * config.num_heads + [plain.key_norm] * config.num_kv_heads
            assert layer.head_norms is not None
            assert torch.equal(layer.head_norms, torch.stack(norms))
    torch.testing.assert_close(weights.lm_head(hidden), F.linear(hidden, parameters.lm_head))
    assert torch.equal(weights.embedding, parameters.embedding)
    assert torch.equal(weights.final_norm, parameters.final_norm)


def test_the_bytes_that_a_row_reads_are_the_parameters_without_norms_and_an_untied_embedding() -> None:
    for tied in (False, True):
        parameters = tiny_parameters(tiny_config(tied_embeddings=tied))
        slots = parameters.slots().items()
        unread = sum(tensor.nbytes for name, tensor in slots if "norm" in name or ("embed" in name and not tied))
        expected = parameters.num_bytes - unread
        assert DecoderWeights.from_parameters(parameters).num_bytes == expected


@needs_packing
def test_plain_layers_are_freed_while_the_next_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = tiny_parameters(tiny_config(num_layers=4))
    watched = [weakref.ref(layer.gate_up) for layer in parameters.layers]
    alive: list[int] = []
    pack: Callable[..., Any] = decoder_weights.Packed

    def counting(weight: Tensor, bias: Tensor | None = None) -> Any:
        alive.append(sum(tensor() is not None for tensor in watched))
        return pack(weight, bias)

    monkeypatch.setattr(decoder_weights, "Packed", counting)
    DecoderWeights.from_parameters(parameters)
    assert alive[0::4][:4] == [4, 3, 2, 1], "at the first projection of each layer the ones before are gone"
    assert alive[-1] == 0, "the LM head is packed last, when no plain layer is left"
    assert isinstance(parameters, Parameters), "held by its caller all the while"


# Quantised weights.


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
