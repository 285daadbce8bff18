"""Adapters that act from a token of the prompt on: KV before it is everyone's, and answers are those of a slow run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.contiguous_cache import CacheView
from engine.core import EngineCore
from engine.decoder import Batch, Decoder, StoreOps
from engine.errors import RequestError
from engine.layers import AdapterRows, AdapterSet
from engine.types import GenerationRequest, Reuse
from tests.engine.cores import PROMPT, drain, make_core, run_one
from tests.engine.test_lora import write_adapter
from tests.engine.tiny import tiny_config, tiny_parameters


class ActiveFrom:
    """A tiny model with two adapters that act from a token of the prompt on, and what it gives when run slowly."""

    def __init__(self, folder: Path) -> None:
        base = tiny_parameters(tiny_config())
        self.folders = {
            name: write_adapter(folder / name, base, lora_alpha=alpha) for name, alpha in [("a", 8), ("b", 30)]
        }
        self.adapters = AdapterSet(base.config, torch.float32, torch.device("cpu"))
        for name, path in self.folders.items():
            self.adapters.load(name, path)
        self.model = Decoder(base)

    def make_core(self, **settings: Any) -> EngineCore:
        core = make_core(model=self.model, **settings)
        for name, path in self.folders.items():
            core.load_adapter(name, path)
        return core

    @torch.inference_mode()
    def write(self, request: GenerationRequest) -> tuple[int, ...]:
        """Return the greedy answer; each token is run over everything before it, without a cache."""
        model, token_ids = self.model, list(request.prompt_ids)
        adapter = None if request.adapter is None else self.adapters.get(request.adapter)
        for _ in range(request.max_new_tokens):
            rows = [(None, request.adapter_start), (adapter, len(token_ids) - request.adapter_start)]
            batch = Batch.from_chunks([(0, token_ids)], torch.device("cpu"), AdapterRows.from_sequences(rows))
            view = CacheView(model.new_caches(1, len(token_ids)), 0, None, len(token_ids))
            hidden = model.run_layers(batch.token_ids, StoreOps(model, batch, view, model.scratch))
            token_ids.append(int(model.logits(hidden[-1:]).argmax()))
        return tuple(token_ids[len(request.prompt_ids) :])


@pytest.fixture(scope="module")
def active_from(tmp_path_factory: pytest.TempPathFactory) -> ActiveFrom:
    return ActiveFrom(tmp_path_factory.mktemp("active"))


@pytest.mark.parametrize(
    "settings", [{}, {"max_batched_tokens": 8}, {"num_pages": 14}], ids=["", "chunks", "few pages"]
)
def test_an_adapter_acts_from_its_start_on_whatever_is_cached(
    active_from: ActiveFrom, settings: dict[str, Any]
) -> None:
    """Prompts that share beginnings, with both adapters, from several tokens on, and with none, twice."""
    core = active_from.make_core(**settings)
    wanted = [
        GenerationRequest(prompt=[*PROMPT, at % 2], max_new_tokens=8, adapter=name, adapter_start=start)
        for at, (name, start) in enumerate([(None, 0), ("a", 0), ("a", 5), ("b", 5), ("a", 12), ("b", len(PROMPT))] * 2)
    ]
    answers = {(each.prompt[-1], each.adapter, each.adapter_start): active_from.write(each) for each in wanted}
    assert len(set(answers.values())) > len(answers) // 2, "adapter and start must show"
    for turn in range(2):
        ids = [core.add(each) for each in (wanted if turn == 0 else wanted[::-1])]
        collected = drain(core)
        for request_id, each in zip(ids, wanted if turn == 0 else wanted[::-1], strict=True):
            right = answers[each.prompt[-1], each.adapter, each.adapter_start]
            assert collected.results[request_id].token_ids == right, (each.adapter, each.adapter_start, turn)


def test_kv_before_the_start_of_an_adapter_is_everyones_and_kv_behind_it_is_its_own(active_from: ActiveFrom) -> None:
    core = active_from.make_core()
    whole, start = len(PROMPT) + 1, 11

    def count_cached(name: str | None, start: int) -> int:
        request = GenerationRequest(prompt=[*PROMPT, 3], max_new_tokens=2, adapter=name, adapter_start=start)
        return run_one(core, request).usage.cached

    assert count_cached(None, 0) == 0
    assert count_cached("a", start) == start
    assert count_cached("a", start) == whole - 1
    assert count_cached("b", start) == start
    assert count_cached("a", start - 4) == start - 4
    assert count_cached("a", 0) == 0
    assert count_cached(None, 0) == whole - 1


def test_bare_kv_that_a_request_with_an_adapter_computed_is_found_without_it(active_from: ActiveFrom) -> None:
    core = active_from.make_core()
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=4, adapter="b", adapter_start=9)
    run_one(core, request)
    bare = replace(request, adapter=None, adapter_start=0)
    result = run_one(core, bare)
    assert result.usage.cached == 9
    assert result.token_ids == active_from.write(bare)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adapter_start": 3}, "without an adapter"),
        ({"adapter": "a", "adapter_start": len(PROMPT)}, "the place of one of the prompt's tokens"),
        ({"adapter": "a", "adapter_start": -1}, "the place of one of the prompt's tokens"),
        ({"adapter": "a", "adapter_start": 3, "reuse": Reuse("fast")}, "only exact KV"),
    ],
)
def test_an_adapters_start_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        GenerationRequest(prompt=PROMPT, max_new_tokens=2, **given)
