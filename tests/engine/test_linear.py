"""Linear layers: packed weights give what plain ones give, quantised ones what they store."""

from __future__ import annotations

import math
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
from engine.layers.decoder_weights import build_fastest, build_fp8, build_quantiser
from engine.layers.linear import (
    INT4_MOST_DIRECT_ROWS,
    INT8_BLOCK_ROWS,
    INT8_STEPS,
    Blocked,
    Dense,
    Fp8,
    Int4,
    Int8,
    Packed,
    Quantization,
    UnpackingBuffer,
    can_block,
    can_multiply_fp8,
    can_pack,
    find_int8_step,
    has_fp8_products,
    is_blocked_faster,
)
from engine.weights import Parameters
from kernels.linear import (
    can_multiply_bytes,
    can_multiply_nibbles,
    multiply_nibbles,
    pack_nibbles,
    quantise_rows_by_torch,
    split_terms,
)
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
    assert isinstance(build_fastest(torch.float64)(random_tensor(4, 4, dtype=torch.float64), None), Dense)
    assert not can_pack("meta", torch.float32)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    can_pack.cache_clear()
    assert isinstance(build_fastest(torch.float32)(random_tensor(4, 4), None), Dense)


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

    assert isinstance(build_fastest(torch.float32)(random_tensor(4, 4), None), Packed)
    can_pack.cache_clear()
    monkeypatch.setattr(linear, "Packed", Faulty)
    assert isinstance(build_fastest(torch.float32)(random_tensor(4, 4), None), Dense)


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
    for plain, layer in zip(parameters.take_layers(), weights.layers, strict=True):
        torch.testing.assert_close(layer.qkv(hidden), F.linear(hidden, plain.qkv, plain.qkv_bias))
        torch.testing.assert_close(layer.attention_out(attended), F.linear(attended, plain.attention_out))
        torch.testing.assert_close(layer.feed_forward.gate_up(hidden), F.linear(hidden, plain.gate_up))
        torch.testing.assert_close(layer.feed_forward.down(inner), F.linear(inner, plain.down))
        assert torch.equal(layer.attention_norm, plain.attention_norm)
        assert torch.equal(layer.ffn_norm, plain.ffn_norm)
        if plain.query_norm is None or plain.key_norm is None:
            assert plain.query_norm is plain.key_norm is None
            assert layer.head_norms == ()
        else:
            norms = [plain.query_norm] * config.num_heads + [plain.key_norm] * config.num_kv_heads
            assert torch.equal(*layer.head_norms, torch.stack(norms))
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
    watched = [weakref.ref(parameters.layer(index).gate_up) for index in range(4)]
    alive: list[int] = []
    pack: Callable[..., Any] = linear.Packed

    def counting(weight: Tensor, bias: Tensor | None = None) -> Any:
        alive.append(sum(tensor() is not None for tensor in watched))
        return pack(weight, bias)

    monkeypatch.setattr(decoder_weights, "Packed", counting)
    DecoderWeights.from_parameters(parameters)
    assert alive[0::4][:4] == [4, 3, 2, 1], "at the first projection of each layer the ones before are gone"
    assert alive[-1] == 0, "the LM head is packed last, when no plain layer is left"
    assert isinstance(parameters, Parameters), "held by its caller all the while"


# Our own kernel.


def random_bf16(*shape: int, seed: int = 0) -> Tensor:
    return random_tensor(*shape, seed=seed, dtype=torch.bfloat16)


@pytest.mark.parametrize("activations", [torch.float32, torch.bfloat16])
@given(
    num_rows=st.integers(0, 40),
    in_features=st.sampled_from([2, 6, 64, 130, 1024, 1026, 2050]),
    out_features=st.sampled_from([1, 63, 64, 65, 200]),
    biased=st.booleans(),
)
def test_our_kernel_gives_what_plain_weights_give_with_the_same_bits_for_one_row_as_for_many(
    activations: torch.dtype, num_rows: int, in_features: int, out_features: int, biased: bool
) -> None:
    weight, bias = random_bf16(out_features, in_features), random_bf16(out_features, seed=1) if biased else None
    if not can_block(weight, activations):
        pytest.skip(f"there is no kernel for {activations} on this machine: it needs g++, and AVX512-BF16 for bf16")
    x = random_tensor(num_rows, in_features, seed=2, dtype=activations)
    projection = Blocked(weight, bias)
    actual = projection(x)
    assert (actual.dtype, actual.shape) == (activations, (num_rows, out_features))
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    sums = F.linear(x.abs().double(), weight.abs().double()) + (0 if bias is None else bias.abs().double())
    rounding = torch.finfo(activations).eps * expected.abs()
    assert ((actual.double() - expected).abs() <= rounding + 1e-7 * in_features * sums).all()
    for row in range(num_rows):
        assert torch.equal(projection(x[row : row + 1])[0], actual[row])
    assert projection.out_features == out_features


def test_our_kernel_takes_views_with_gaps() -> None:
    weight = random_bf16(24, 16)
    if not can_block(weight, torch.float32):
        pytest.skip("there is no kernel on this machine: it needs g++")
    x = random_tensor(9, 64, seed=1)[::2, 16:32]
    torch.testing.assert_close(Blocked(weight)(x), F.linear(x, weight.float()))


def test_our_kernel_is_for_bf16_weights_of_an_even_width() -> None:
    assert not can_block(random_bf16(8, 7), torch.float32)
    assert not can_block(random_tensor(8, 8), torch.float32)
    assert not can_block(random_bf16(8, 8), torch.float64)
    assert not can_block(random_bf16(8, 8).to("meta"), torch.float32)


def test_wide_activations_get_our_kernel_or_else_converted_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias, x = random_bf16(64, 32), random_bf16(64, seed=1), random_tensor(5, 32, seed=2)
    expected = F.linear(x, weight.float(), bias.float())
    projection = build_fastest(torch.float32)(weight, bias)
    assert isinstance(projection, Blocked) == can_block(weight, torch.float32)
    torch.testing.assert_close(projection(x), expected)
    monkeypatch.setattr(decoder_weights, "can_block", lambda *_: False)
    projection = build_fastest(torch.float32)(weight, bias)
    assert isinstance(projection, Packed if can_pack("cpu", torch.float32) else Dense)
    torch.testing.assert_close(projection(x), expected)


@needs_packing
@pytest.mark.parametrize(("ours_s", "is_ours"), [(1.0, True), (1.25, True), (1.5, False)])
def test_in_bf16_our_kernel_serves_unless_onednn_is_much_quicker(
    monkeypatch: pytest.MonkeyPatch, ours_s: float, is_ours: bool
) -> None:
    if not can_block(random_bf16(8, 8), torch.bfloat16) or not can_pack("cpu", torch.bfloat16):
        pytest.skip("our kernel in bf16 needs g++ and AVX512-BF16")
    monkeypatch.setattr(linear, "time_in_turns", lambda _: [ours_s, 1.0])
    is_blocked_faster.cache_clear()
    try:
        assert isinstance(build_fastest(torch.bfloat16)(random_bf16(8, 8), None), Blocked) == is_ours
    finally:
        is_blocked_faster.cache_clear()


# Quantised weights.


SCHEMES: tuple[Quantization, ...] = ("int8", "int4")
DTYPES = [torch.bfloat16, torch.float32, torch.float16]


def quantise(
    scheme: Quantization, weight: Tensor, bias: Tensor | None = None, buffer_elements: int = 4096
) -> Int4 | Int8:
    return (
        Int8(weight, bias) if scheme == "int8" else Int4(weight, bias, UnpackingBuffer(weight.dtype, buffer_elements))
    )


def dequantise(scheme: Quantization, weight: Tensor) -> Tensor:
    """The matrix that is multiplied by, float32."""
    if scheme == "int4":
        return Int4(weight, None, UnpackingBuffer(weight.dtype, 4096)).dequantise()
    integers, scales, _ = quantise_rows_by_torch(weight)
    return integers.float() * scales[:, None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 17, 90])
def test_an_fp8_product_is_that_of_the_rounded_rows_and_weights(
    num_rows: int, biased: bool, dtype: torch.dtype
) -> None:
    weight = random_tensor(48, 64, dtype=dtype)
    weight[3] *= 1e-3
    weight[5] = 0
    bias = random_tensor(48, seed=1, dtype=dtype) if biased else None
    x = random_tensor(num_rows, 64, seed=2, dtype=dtype)
    x[0, 7] = 3000.0  # an outlier as Qwen's activations have them

    def rounded(matrix: Tensor) -> Tensor:
        scales = matrix.double().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 448
        return (matrix.double() / scales).float().to(torch.float8_e4m3fn).double() * scales

    projection = Fp8(weight, bias)
    actual = projection(x)
    exact = rounded(x) @ rounded(weight).T + (0.0 if bias is None else bias.double())
    assert actual.dtype == dtype
    assert (actual - exact).norm() <= 5e-3 * exact.norm()  # bf16
    plain = F.linear(x, weight, bias).double()
    assert 1e-3 < (actual - plain).norm() / plain.norm() < 0.05
    assert projection.num_bytes == 48 * 64 + 4 * 48 + (0 if bias is None else bias.nbytes)
    assert projection.out_features == 48


def test_a_row_that_has_no_numbers_spoils_no_other_row_in_fp8() -> None:
    x = random_tensor(4, 64)
    expected = Fp8(weight := random_tensor(32, 64, seed=1))(x)
    x[1, 3], x[2, 5] = math.nan, math.inf
    found = Fp8(weight)(x)
    assert found[1:3].isnan().all()
    assert torch.equal(found[[0, 3]], expected[[0, 3]])


@pytest.mark.parametrize(("shape", "can"), [((32, 48), True), ((32, 40), False), ((33, 48), False)])
def test_what_torch_does_not_multiply_in_fp8_stays_as_it_is(shape: tuple[int, int], can: bool) -> None:
    weight = random_tensor(*shape, dtype=torch.bfloat16)
    assert can_multiply_fp8(weight) == can
    assert isinstance(build_fp8(torch.bfloat16)(weight, None), Fp8) == can


def test_a_device_without_products_in_fp8_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Tensor:
        raise RuntimeError("torch._scaled_mm is only supported on devices with compute capability >= 8.9")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    has_fp8_products.cache_clear()
    try:
        assert not has_fp8_products(torch.device("cpu"))
        with pytest.raises(WeightsError, match="Ada, Hopper or later; load the model unquantised"):
            DecoderWeights.from_parameters(tiny_parameters(tiny_config()), "fp8")
    finally:
        has_fp8_products.cache_clear()


def test_a_decoder_in_fp8_keeps_its_lm_head_as_it_is() -> None:
    parameters = tiny_parameters(tiny_config(hidden_size=64, ffn_size=96, head_dim=16, vocab_size=80))
    head = parameters.lm_head.clone()
    weights = DecoderWeights.from_parameters(parameters, "fp8", torch.float32)
    parts = [(layer.qkv, layer.feed_forward.gate_up, layer.feed_forward.down) for layer in weights.layers]
    assert all(isinstance(each, Fp8) for layer in parts for each in layer)
    x = random_tensor(3, 64)
    torch.testing.assert_close(weights.lm_head(x), F.linear(x, head))


@given(
    num_rows=st.sampled_from([0, 1, 2, 7, 24, 25, 40, 41, 90]),
    in_groups=st.integers(1, 4),
    out_groups=st.integers(1, 6),
    biased=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    buffer_rows=st.sampled_from([1, 5, 1000]),
)
def test_an_int4_product_is_that_of_the_stored_weights(
    num_rows: int, in_groups: int, out_groups: int, biased: bool, dtype: torch.dtype, buffer_rows: int
) -> None:
    in_features, out_features = 32 * in_groups, 16 * out_groups
    weight = random_tensor(out_features, in_features, dtype=dtype)
    bias = random_tensor(out_features, seed=1, dtype=dtype) if biased else None
    x = random_tensor(num_rows, in_features, seed=2, dtype=dtype)
    projection = Int4(weight, bias, UnpackingBuffer(dtype, buffer_rows * in_features))
    actual = projection(x)
    assert actual.dtype == dtype
    assert actual.shape == (num_rows, out_features)
    stored, exact_bias = projection.dequantise().double(), 0.0 if bias is None else bias.double()
    product = x.double() @ stored.T
    # A rounding of the product, one by the scale and one by the bias.
    eps = torch.finfo(dtype).eps
    bound = 1.5 * eps * (product.abs() + (product + exact_bias).abs()) + 1e-6 * in_features
    bound = bound + 1e-6 * x.double().abs() @ stored.abs().T
    if dtype == torch.bfloat16 and can_multiply_nibbles(in_features):  # half a unit of each activation, as in int8
        bound = bound + 1.1 * x.double().abs().amax(dim=1, keepdim=True) / 256**2 * stored.abs().sum(dim=1)
    assert ((actual.double() - (product + exact_bias)).abs() <= bound).all()


@given(
    num_rows=st.sampled_from([0, 1, 2, 7, 90, INT8_BLOCK_ROWS, INT8_BLOCK_ROWS + 1, 2 * INT8_BLOCK_ROWS + 3]),
    in_features=st.sampled_from([1, 31, 64, 130]),
    out_features=st.sampled_from([1, 16, 47]),
    biased=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    outlier=st.sampled_from([1.0, 200.0]),
    by_our_kernel=st.booleans(),
)
def test_an_int8_product_is_that_of_the_stored_weights_with_the_same_bits_for_one_row_as_for_many(
    num_rows: int,
    in_features: int,
    out_features: int,
    biased: bool,
    dtype: torch.dtype,
    outlier: float,
    by_our_kernel: bool,
) -> None:
    step = find_int8_step()
    assert step is not None
    by_our_kernel = by_our_kernel and can_multiply_bytes(in_features)
    weight = random_tensor(out_features, in_features, dtype=dtype)
    bias = random_tensor(out_features, seed=1, dtype=dtype) if biased else None
    x = random_tensor(num_rows, in_features, seed=2, dtype=dtype)
    x[:, 0] *= outlier
    projection = Int8(weight, bias, by_our_kernel)
    actual = projection(x)
    assert (actual.dtype, actual.shape) == (dtype, (num_rows, out_features))
    stored = dequantise("int8", weight).double()
    expected = x.double() @ stored.T + (0.0 if bias is None else bias.double())
    # Half a unit of each activation, which is the row's largest by `step * step / 2`, and the roundings of float32.
    largest = x.double().abs().amax(dim=1, keepdim=True)
    bound = 1.1 * largest / step**2 * stored.abs().sum(dim=1) + 1e-6 * (x.double().abs() @ stored.abs().T)
    assert ((actual.double() - expected).abs() <= bound + torch.finfo(dtype).eps * expected.abs() + 1e-12).all()
    for row in range(num_rows):
        assert torch.equal(projection(x[row : row + 1])[0], actual[row])


@given(
    step=st.sampled_from(INT8_STEPS),
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20),
)
def test_the_terms_of_activations_are_bytes_and_are_off_by_half_a_unit(step: int, values: list[float]) -> None:
    x = torch.tensor([values, [0.0] * len(values)])
    terms, scales = split_terms(x.clone(), step)
    assert terms.shape == (4, len(values))
    assert terms.dtype == torch.uint8
    assert int(terms.max()) < step
    uppers, lowers = torch.split(terms.double() - step // 2, 2)
    off = ((step * uppers + lowers) * scales.double() - x.double()).abs()
    assert (off <= 0.501 * scales + 1e-30).all()
    assert not off[1].any(), "a row of zeros stays one"


def test_the_probe_takes_the_largest_step_that_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturate(terms: Tensor, scale: float, zero: int, weight: Tensor, *_: Any) -> Tensor:
        """AVX2: two products are added in 16 bits."""
        pairs = (terms.double()[:, None] * weight.double()[None]).view(len(terms), len(weight), -1, 2).sum(dim=3)
        correction = zero * weight.double().sum(dim=1)
        return (pairs.clamp(-(2**15), 2**15 - 1).sum(dim=2) - correction).float()

    def refuse(*_: Any) -> Tensor:
        raise RuntimeError("no such operator")

    class Operators:
        qlinear_prepack: Any = staticmethod(lambda weight, _: weight)
        qlinear_pointwise: Any = staticmethod(saturate)

    monkeypatch.setattr(linear, "torch", _Torch(Operators))
    find_int8_step.cache_clear()
    try:
        assert find_int8_step() == 128
        find_int8_step.cache_clear()
        Operators.qlinear_pointwise = staticmethod(refuse)
        assert find_int8_step() is None
        with pytest.raises(WeightsError, match="int8 weights need a torch with oneDNN"):
            DecoderWeights.from_parameters(tiny_parameters(tiny_config()), "int8")
    finally:
        find_int8_step.cache_clear()


class _Torch:
    """torch with other operators of oneDNN."""

    def __init__(self, operators: type) -> None:
        self.ops = type("ops", (), {"onednn": operators})

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_int4_rows_run_the_weights_that_one_row_runs(dtype: torch.dtype) -> None:
    """Within the order of the sums, as with dense weights: else a draft is verified by another model than wrote it."""
    weight = (0.02 * random_tensor(64, 896, dtype=torch.float32)).to(dtype)
    x = random_tensor(INT4_MOST_DIRECT_ROWS + 8, 896, seed=1, dtype=dtype)
    projection = Int4(weight, None, UnpackingBuffer(dtype))
    together, alone = (each.double() for each in (projection(x), torch.cat([projection(row[None]) for row in x])))
    assert (together - alone).norm() <= max(0.1 * torch.finfo(dtype).eps, 1e-6) * alone.norm()


def test_int4_under_wide_activations_keeps_their_precision_where_our_kernel_runs() -> None:
    weight, bias = (0.02 * random_tensor(64, 896)).bfloat16(), random_bf16(64)
    x = random_tensor(INT4_MOST_DIRECT_ROWS + 8, 896, seed=1)
    projection = Int4(weight, bias, UnpackingBuffer(torch.float32))
    expected = x.double() @ projection.dequantise().double().T + bias.double()
    bound = 1e-4 if can_multiply_nibbles(896) else torch.finfo(torch.bfloat16).eps
    for num_rows in (len(x), 3):
        difference = projection(x[:num_rows]).double() - expected[:num_rows]
        assert difference.norm() <= bound * expected[:num_rows].norm()


@pytest.mark.skipif(not can_multiply_nibbles(32), reason="needs AVX512-VNNI")
@given(
    num_rows=st.integers(0, 13),
    in_groups=st.integers(1, 40),
    out_features=st.sampled_from([1, 16, 63, 64, 130]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    biased=st.booleans(),
)
def test_our_int4_kernel_multiplies_nibbles_with_the_same_bits_for_one_row_as_for_many(
    num_rows: int, in_groups: int, out_features: int, dtype: torch.dtype, biased: bool
) -> None:
    integers = torch.randint(0, 16, (out_features, 32 * in_groups), generator=torch.Generator().manual_seed(num_rows))
    scales, least = random_bf16(out_features, in_groups), random_bf16(out_features, in_groups)
    bias = random_tensor(out_features, seed=3) if biased else None
    weights = pack_nibbles(integers, scales, least, bias)
    terms, row_scales = split_terms(random_tensor(num_rows, 32 * in_groups, seed=4), 256)
    product = multiply_nibbles(terms, row_scales, weights, dtype)
    groups = integers.view(out_features, in_groups, 32).double()
    stored = (groups * scales.double()[..., None] + least.double()[..., None]).flatten(1)
    uppers, lowers = terms.double().sub(128).chunk(2)
    x = (256 * uppers + lowers) * row_scales.double()
    expected = x @ stored.T + (0.0 if bias is None else bias.double())
    bound = torch.finfo(dtype).eps * expected.abs() + 2e-6 * (x.abs() @ stored.abs().T + 1.0)
    assert product.dtype == dtype
    assert ((product.double() - expected).abs() <= bound).all()
    for row in range(num_rows):
        own = terms[[row, num_rows + row]]
        assert torch.equal(multiply_nibbles(own, row_scales[row : row + 1], weights, dtype), product[row : row + 1])


@pytest.mark.skipif(can_multiply_nibbles(32), reason="has AVX512-VNNI, and our kernel")
def test_int4_under_wide_activations_computes_in_the_dtype_of_its_weights() -> None:
    weight, bias = (0.02 * random_tensor(64, 896)).bfloat16(), random_bf16(64)
    x = random_tensor(INT4_MOST_DIRECT_ROWS + 8, 896, seed=1)
    wide = Int4(weight, bias, UnpackingBuffer(torch.float32))
    narrow = Int4(weight, bias, UnpackingBuffer(torch.bfloat16))
    for rows in (x, x[:3]):
        assert wide(rows).dtype == torch.float32
        torch.testing.assert_close(wide(rows), narrow(rows.bfloat16()).float(), rtol=2.0**-7, atol=2.0**-9)


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
    projection = Int8(weight, None)
    for rows in (x, x[:1]):
        assert torch.allclose(projection(rows), torch.tensor(5120.0, dtype=torch.float16), rtol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_off_by_half_a_step_of_each_outputs_own_scale(dtype: torch.dtype) -> None:
    weight = (random_tensor(48, 64) * torch.logspace(-3, 1, 48)[:, None]).to(dtype)
    off = (dequantise("int8", weight) - weight.float()).abs()
    steps = weight.float().abs().amax(dim=1, keepdim=True) / 127
    assert (off <= 0.501 * steps).all()
    assert (off > 0.4 * steps).any()


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
    whole, stored = quantise(scheme, weight, buffer_elements=64), dequantise(scheme, weight)
    monkeypatch.setattr("engine.layers.linear.INT4_ROWS_AT_A_TIME", 32)
    monkeypatch.setattr("kernels.linear.ROWS_AT_A_TIME", 32)
    assert torch.equal(dequantise(scheme, weight), stored)
    expected = F.linear(x, stored)
    assert (whole(x) - expected).norm() <= 1e-3 * expected.norm(), "of which the activations' rounding has most"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_of_one_value_and_zeros_are_kept(scheme: Quantization) -> None:
    weight = torch.zeros(32, 64)
    weight[:16] = 0.75
    torch.testing.assert_close(dequantise(scheme, weight), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_rows", [1, INT4_MOST_DIRECT_ROWS + 1])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_damaged_weight_is_not_hidden(scheme: Quantization, fault: float, num_rows: int) -> None:
    weight = random_tensor(16, 32)
    weight[3, 7] = fault
    product = quantise(scheme, weight)(torch.ones(num_rows, 32))
    assert not product[:, 3].isfinite().any()
    assert product[:, 4].isfinite().all()


@pytest.mark.parametrize(("scheme", "bits"), [("int8", 8), ("int4", 4)])
def test_a_row_reads_that_many_bits_a_weight_and_the_scales(scheme: Quantization, bits: int) -> None:
    weight, bias = random_tensor(64, 128, dtype=torch.bfloat16), random_tensor(64, dtype=torch.bfloat16)
    projection = build_quantiser(scheme, UnpackingBuffer(torch.bfloat16), torch.bfloat16)(weight, bias)
    scale_bytes = 4 * 64 if scheme == "int8" else 2 * 64 * 4 * 2
    assert projection.num_bytes == 64 * 128 * bits // 8 + scale_bytes + 2 * 64
    assert projection.out_features == 64


@pytest.mark.parametrize("shape", [(40, 32), (32, 48)])
def test_a_shape_that_the_int4_kernel_would_read_beyond_is_left_as_it_is(shape: tuple[int, int]) -> None:
    weight, x = random_tensor(*shape), random_tensor(3, shape[1], seed=1)
    projection = build_quantiser("int4", UnpackingBuffer(torch.float32), torch.float32)(weight, None)
    assert type(projection) is type(build_fastest(torch.float32)(weight, None))
    torch.testing.assert_close(projection(x), F.linear(x, weight))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tied", [False, True])
def test_all_projections_of_a_decoder_are_quantised_and_its_embedding_is_not(scheme: Quantization, tied: bool) -> None:
    config = tiny_config(ffn_size=64, tied_embeddings=tied)
    weights = DecoderWeights.from_parameters(tiny_parameters(config), scheme)
    for layer in weights.layers:
        for projection in (layer.qkv, layer.attention_out, layer.feed_forward.gate_up, layer.feed_forward.down):
            assert type(projection) is (Int8 if scheme == "int8" else Int4)
    assert type(weights.lm_head) is Int8, "four bits are too few for the LM head"
    assert torch.equal(weights.embedding, tiny_parameters(config).embedding)


def test_quantised_weights_elsewhere_than_on_a_cpu_are_refused() -> None:
    parameters = tiny_parameters(tiny_config())
    parameters.embedding = parameters.embedding.to("meta")
    message = "int8 weights are for CPUs; take fp8, or load the model unquantised on meta"
    with pytest.raises(WeightsError, match=message):
        DecoderWeights.from_parameters(parameters, "int8")
