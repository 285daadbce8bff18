"""Shortcuts change what they say, and wrong tokens are counted as the model would write them."""

from __future__ import annotations

from random import Random

import pytest
import torch

from benchmarks.lossy import Edit, Shortcut, ask, change, summarise
from engine.decoder import Decoder
from engine.weights import Parameters
from tests.engine.reuse.turns import random_ids
from tests.engine.test_parity import logits_of
from tests.engine.tiny import tiny_config, tiny_parameters


def test_layers_before_the_last_are_dropped_and_those_behind_keep_their_weights() -> None:
    config = tiny_config(num_layers=6)
    fewer, rename = change(config, Shortcut("", dropped=2))
    assert fewer.num_layers == 4
    names = [f"model.layers.{at}.mlp.down_proj.weight" for at in (0, 1, 2, 5)]
    assert [rename(f"model.layers.{at}.mlp.down_proj.weight") for at in range(4)] == names
    whole = tiny_parameters(config).slots()
    cut = Parameters(fewer, torch.float32, read=lambda name: whole[rename(name)])
    assert torch.equal(cut.layer(3).down, whole[names[3]])


@pytest.mark.parametrize(("own", "expected"), [(None, 7), (5, 5), (9, 7)])
def test_a_window_is_the_narrower_one(own: int | None, expected: int) -> None:
    config, _ = change(tiny_config(sliding_window=own), Shortcut("", window=7))
    assert {layer.window for layer in config.layers} == {expected}


def test_wrong_tokens_are_those_that_the_model_would_not_choose() -> None:
    random = Random(3)
    parameters = tiny_parameters(tiny_config())
    prompt, answer = random_ids(random, 30), random_ids(random, 20)
    row = ask(Decoder(parameters), Edit(tuple(prompt), tuple(answer)))
    logits = logits_of(Decoder(tiny_parameters(tiny_config())), [*prompt, *answer])[len(prompt) - 1 : -1]
    chosen = logits.argmax(dim=-1).tolist()
    assert row["misses"] == sum(own != right for own, right in zip(chosen, answer, strict=True))
    assert 0 < row["misses"] <= row["tokens"] == 20
    right = ask(Decoder(tiny_parameters(tiny_config())), Edit(tuple(prompt), (chosen[0],)))
    assert right["misses"] == 0
    table = summarise(Shortcut("own"), [row, right])
    assert (table["exact"], table["misses"]) == (1, row["misses"] / 2)
