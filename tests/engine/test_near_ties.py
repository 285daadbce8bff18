"""Greedy choices that the last bits may have decided are counted, each once, and no others."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from engine.decoder import Decoder
from engine.sampling import is_near_tie
from engine.sampling.logits import NOISE
from engine.types import GenerationRequest
from kernels.accept import find_top_tokens
from tests.engine.cores import PROMPT, make_core, run_one, tiny_model
from tests.engine.drafters import AlwaysWrong, Oracle
from tests.engine.tiny import VOCAB_SIZE, tiny_config, tiny_parameters

REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=40)


def test_ties_are_counted_where_they_are_chosen() -> None:
    plain = run_one(make_core(), REQUEST)
    assert plain.usage.near_ties == 0
    twice, count = Counter(plain.token_ids).most_common(1)[0]
    twin = next(each for each in range(twice + 1, VOCAB_SIZE) if each not in plain.token_ids)
    parameters = tiny_parameters(tiny_config())
    parameters.lm_head[twin] = parameters.lm_head[twice]
    tied = Decoder(parameters)
    for drafter in (None, Oracle(plain.token_ids), AlwaysWrong(plain.token_ids, VOCAB_SIZE)):
        result = run_one(make_core(model=tied), REQUEST, drafter)
        assert result.token_ids == plain.token_ids
        assert result.usage.near_ties == count > 1


def test_choices_behind_the_end_are_not_counted() -> None:
    plain = run_one(make_core(), REQUEST)
    parameters = tiny_parameters(tiny_config())
    stop_id = plain.token_ids[5]
    end = plain.token_ids.index(stop_id) + 1
    later = next(each for each in plain.token_ids[end:] if each not in plain.token_ids[:end])
    twin = next(each for each in range(VOCAB_SIZE) if each not in plain.token_ids)
    parameters.lm_head[twin] = parameters.lm_head[later]
    stopped = GenerationRequest(prompt=PROMPT, max_new_tokens=40, stop_ids=frozenset({stop_id}))
    core = make_core(model=Decoder(parameters))
    assert run_one(core, stopped, Oracle(plain.token_ids)).usage.near_ties == 0


@pytest.mark.parametrize("dtype", NOISE)
def test_the_bound_is_relative_to_the_largest_logit(dtype: torch.dtype) -> None:
    noise = NOISE[dtype]
    logits = torch.tensor([[-1.0, 20.0, 20.0 * (1 - part * noise)] for part in (0.0, 0.5, 2.0)] + [[-3.0, -2.0, -1.0]])
    assert is_near_tie(find_top_tokens(logits), dtype).tolist() == [True, True, False, False]
    assert not np.any(is_near_tie(find_top_tokens(torch.zeros(1, 1) + 1.0), dtype))


def test_models_of_every_dtype_have_a_bound() -> None:
    assert set(NOISE) == {torch.float32, torch.bfloat16, torch.float16}
    assert tiny_model().weights.dtype in NOISE
