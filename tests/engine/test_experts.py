"""A mixture of experts, in every form that its weights may have, is the sum over each row's experts one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import ExpertsConfig
from engine.errors import WeightsError
from engine.layers import decoder_weights
from engine.layers.decoder_weights import DecoderWeights, build_fastest, build_quantiser
from engine.layers.experts import Experts, GroupedExperts
from engine.layers.linear import Blocked, Dense, Projection, UnpackingBuffer, can_block, find_int8_step
from kernels.swiglu import swiglu
from tests.engine.tiny import QWEN3_MOE, tiny_config, tiny_decoder, tiny_parameters

HIDDEN, FFN = 64, 48
CONFIG = ExpertsConfig(num_experts=9, num_used=3, ffn_size=FFN, is_normalised=True)


def draw(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).mul_(0.3).to(dtype)


ROUTER, GATE_UP, DOWN = (
    draw(*sizes, seed=seed) for seed, sizes in enumerate([(9, HIDDEN), (9, 2 * FFN, HIDDEN), (9, HIDDEN, FFN)])
)


def build(store: Callable[[Tensor, Tensor | None], Projection], config: ExpertsConfig = CONFIG) -> Experts:
    parts = ([store(each, None) for each in part] for part in (GATE_UP, DOWN))
    return Experts(config, Dense(ROUTER), *parts)


def compute_slowly(x: Tensor, config: ExpertsConfig = CONFIG) -> Tensor:
    """Row by row, expert by expert."""
    rows = []
    for row in x.double():
        shares = (ROUTER.double() @ row).softmax(dim=0)
        chosen = shares.argsort(descending=True)[: config.num_used].tolist()
        total = sum(shares[each] for each in chosen) if config.is_normalised else 1.0
        results = []
        for each in chosen:
            gate, up = (GATE_UP[each].double() @ row).chunk(2)
            results.append(shares[each] / total * (DOWN[each].double() @ (F.silu(gate) * up)))
        rows.append(torch.stack(results).sum(dim=0))
    return torch.stack(rows).float()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("num_rows", [1, 2, 40])
@pytest.mark.parametrize("is_normalised", [False, True])
def test_experts_are_the_sum_of_those_that_a_row_has_chosen(num_rows: int, is_normalised: bool) -> None:
    config = ExpertsConfig(9, 3, FFN, is_normalised)
    x = draw(num_rows, HIDDEN, seed=7) * 5
    expected = compute_slowly(x, config)
    assert relative_error(build(Dense, config)(x, swiglu), expected) < 1e-5
    assert relative_error(build(Dense, config)(x, swiglu, pad=16), expected) < 1e-5
    grouped = GroupedExperts(config, Dense(ROUTER), GATE_UP, DOWN)
    assert relative_error(grouped(x, swiglu), expected) < 1e-5


@pytest.mark.parametrize(
    ("scheme", "activations", "bound"),
    [
        (None, torch.float32, 1e-5),
        (None, torch.bfloat16, 0.02),
        ("int8", torch.float32, 0.02),
        ("int8", torch.bfloat16, 0.03),
        ("int4", torch.float32, 0.2),
    ],
)
def test_experts_may_be_in_any_form(
    scheme: decoder_weights.Quantization | None, activations: torch.dtype, bound: float
) -> None:
    if scheme is not None and find_int8_step() is None:
        pytest.skip("this torch has no exact products of bytes")
    store = build_fastest(activations)
    if scheme is not None:
        store = build_quantiser(scheme, UnpackingBuffer(activations), activations)
    x = draw(30, HIDDEN, seed=7) * 5
    experts = build(store)
    experts._router = Dense(ROUTER.to(activations))
    rows = x.to(activations)
    clear = experts.route(rows)[1].sort().values == build(Dense).route(x)[1].sort().values  # no near tie
    kept = clear.all(dim=1)
    assert kept.sum() > 20
    assert relative_error(experts(rows, swiglu)[kept], compute_slowly(x)[kept]) < bound


def test_an_expert_that_no_row_has_chosen_is_not_read() -> None:
    experts = build(Dense)
    used: list[int] = []

    def watch(number: int, projection: Projection, x: Tensor) -> Tensor:
        used.append(number)
        return projection(x)

    experts._gate_up = [partial(watch, number, each) for number, each in enumerate(experts._gate_up)]
    x = draw(1, HIDDEN, seed=3)
    experts(x, swiglu)
    assert used == sorted(experts.route(x)[1].flatten().tolist())


def test_a_rows_result_has_the_same_bits_whatever_else_is_in_the_pass() -> None:
    """With our kernel for the products, and padded to one shape by any."""
    x = draw(50, HIDDEN, seed=9) * 5
    if can_block(GATE_UP[0].bfloat16(), torch.float32):
        blocked = Experts(
            CONFIG,
            Blocked(ROUTER.bfloat16()),
            *([Blocked(each.bfloat16()) for each in part] for part in (GATE_UP, DOWN)),
        )
        whole = blocked(x, swiglu)
        assert all(torch.equal(blocked(x[at : at + 7], swiglu), whole[at : at + 7]) for at in (0, 1, 43))
    padded = partial(build(Dense), activate=swiglu, pad=16)
    assert torch.equal(padded(x[:16])[3:4], padded(torch.cat([x[3:4], x[20:35]]))[:1])


def test_quantised_experts_are_quantised_and_their_router_is_not() -> None:
    if find_int8_step() is None:
        pytest.skip("this torch has no exact products of bytes")
    weights = DecoderWeights.from_parameters(tiny_parameters(tiny_config(**QWEN3_MOE)), "int8")
    for layer in weights.layers:
        experts = layer.feed_forward
        assert isinstance(experts, Experts)
        assert {type(each).__name__ for each in (*experts._gate_up, *experts._down)} == {"Int8"}
        assert type(experts._router) is type(build_fastest(torch.float32)(ROUTER, None))


def test_a_row_reads_the_bytes_of_the_experts_that_it_uses() -> None:
    parameters = tiny_parameters(tiny_config(**QWEN3_MOE))
    layer = parameters.layer(0)
    plain = layer.qkv, layer.attention_out, layer.router
    expected = sum(each.nbytes for each in plain) + (layer.expert_gate_up.nbytes + layer.expert_down.nbytes) * 2 // 6
    assert DecoderWeights.from_parameters(parameters).layers[0].num_bytes == expected


def test_more_experts_than_there_are_cannot_be_used() -> None:
    with pytest.raises(WeightsError, match="9 of 8 experts cannot be used"):
        ExpertsConfig(8, 9, FFN, is_normalised=True)
    with pytest.raises(WeightsError, match="a layer has experts, and their sizes are not given"):
        tiny_config(**QWEN3_MOE | {"experts": None})


def test_the_experts_of_a_model_differ_from_row_to_row() -> None:
    """Otherwise parity would prove nothing."""
    experts = tiny_decoder(**QWEN3_MOE).weights.layers[0].feed_forward
    assert isinstance(experts, Experts)
    _, chosen = experts.route(draw(30, 32, seed=2) * 5)
    assert len(chosen.unique()) == 6
