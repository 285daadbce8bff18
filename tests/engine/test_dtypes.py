"""A model in fewer bits is near the one in float32: by how much tells what each dtype and scheme costs."""

from __future__ import annotations

import pytest
import torch

from engine.decoder import Decoder
from engine.weights import Parameters, load
from engine.weights.checkpoint import fingerprint
from tests.engine.test_parity import REAL_TEXTS, logits_of, random_tokens, relative_error
from tests.engine.tiny import QWEN3, tiny_config, tiny_parameters
from tests.models import RealModel


def rounded(parameters: Parameters, dtype: torch.dtype) -> Parameters:
    copy = Parameters(parameters.config, dtype)
    copy.fill(iter(parameters.slots().items()))
    return copy


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float16, 0.05), (torch.bfloat16, 0.4)],  # of the largest logit's error to the spread: 2^-11 and 2^-8 a step
)
@pytest.mark.parametrize("changes", [{}, QWEN3 | {"head_dim": 16}], ids=["qwen2", "qwen3"])
def test_logits_of_a_tiny_model_are_near_those_in_float32(
    changes: dict[str, object], dtype: torch.dtype, bound: float
) -> None:
    parameters = tiny_parameters(tiny_config(**changes))
    low = Decoder(rounded(parameters, dtype))
    token_ids = random_tokens(30)
    actual, expected = logits_of(low, token_ids), logits_of(Decoder(parameters), token_ids)
    assert actual.dtype == dtype
    assert 0 < relative_error(actual.float(), expected) < bound


def test_a_real_models_logits_in_float16_are_near_those_in_float32(
    smollm2: RealModel, smollm2_decoder: Decoder
) -> None:
    token_ids = smollm2.tokenizer.encode(REAL_TEXTS["a file"])
    actual = logits_of(Decoder(load(smollm2.gguf, torch.float16)), token_ids).float()
    expected = logits_of(smollm2_decoder, token_ids)
    assert 0 < relative_error(actual, expected) < 0.04  # 0.017 seen; in bfloat16 0.18
    assert (actual.argmax(dim=-1) == expected.argmax(dim=-1)).float().mean() > 0.98


def test_the_kv_of_another_dtype_or_scheme_is_never_taken_for_this_ones() -> None:
    parameters = tiny_parameters(tiny_config())
    names = {fingerprint(rounded(parameters, dtype)) for dtype in (torch.float32, torch.float16, torch.bfloat16)}
    names |= {fingerprint(parameters, scheme) for scheme in (None, "int8", "int4")}
    assert len(names) == 5
    assert Decoder(parameters, "int8").fingerprint in names
