"""Packed projections give what plain ones give; a decoder's layers are freed as they are packed."""

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
from engine.layers.decoder_weights import build_fastest
from engine.layers.linear import Dense, Packed, can_pack
from engine.weights import Parameters
from tests.engine.tiny import QWEN3, tiny_config, tiny_parameters

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
        for name in ("attention_norm", "query_norm", "key_norm", "ffn_norm"):
            ours, theirs = getattr(layer, name), getattr(plain, name)
            assert ours is theirs is None or torch.equal(ours, theirs)
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
