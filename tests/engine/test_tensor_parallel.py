"""A model on two ranks answers as on one, however sums are hidden; a rank that dies ends it with a clear error."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
import torch

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine import Engine
from engine.errors import EngineClosed, EngineFault, RankLost, WeightsError
from engine.runner.step_rows import PagedRows
from engine.tensor_parallel import RankSetup, Shard, ShardDecoder, start_ranks
from engine.tensor_parallel.decoder import OVERLAPS, Overlap
from engine.tensor_parallel.group import find_memory_folder
from engine.tensor_parallel.runner import MEASURED_ROWS, ShardRunner, pack_rows, split_rows, unpack_rows
from engine.tensor_parallel.shared_sums import can_share
from engine.types import GenerationRequest, GenerationResult
from engine.weights import load, save_folder
from engine.worker import Stream
from tests.engine.cores import Oracle
from tests.engine.reuse.turns import random_ids
from tests.engine.tiny import FAMILIES, OLMO2, TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_limits, tiny_parameters

ON_TWO = [
    *("llama", "deepseek v3"),
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("qwen2, windows in a part", "qwen3 moe", "gemma2", "phi3", "deepseek v2")
    ),
]
"""Families with biases, windows, experts, norms of results, fused projections, and latent attention."""


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@contextmanager
def on_ranks(folder: Path, size: int = 2, **setup: Any) -> Iterator[Engine]:
    with Engine(start_ranks(RankSetup(folder, size, torch.float32, **setup)), TOKEN_BYTES, tiny_limits()) as engine:
        yield engine


def save(folder: Path, **changes: Any) -> Path:
    save_folder(tiny_parameters(tiny_config(**changes)), folder)
    return folder


def list_requests() -> list[tuple[GenerationRequest, Any]]:
    """Long and short prompts, of one prefix, greedy and sampled, with scores, and a draft that is partly wrong."""
    random = Random(4)
    prompt = random_ids(random, 90)
    return [
        (GenerationRequest(prompt, 24), None),
        (GenerationRequest(prompt[:40], 24), Oracle(tuple(random_ids(random, 24)))),
        (GenerationRequest([*prompt[:70], 3, 1], 20, temperature=0.8, seed=5), None),
        (GenerationRequest([7], 16, logprobs=3), None),
        (GenerationRequest(prompt[:20], 6, forced_ids=(4, 5, 6, 7, 8, 9), logprobs=1), None),
    ]


def finish(stream: Stream) -> GenerationResult:
    while True:
        try:
            next(stream)
        except StopIteration as end:
            result: GenerationResult = end.value
            return result


def hide_sums(engine: Engine, overlap: Overlap) -> None:
    def choose(core: EngineCore) -> None:
        assert isinstance(core._runner, ShardRunner)
        core._runner.overlaps = dict.fromkeys(MEASURED_ROWS, overlap)

    engine._worker.call(choose).result()


def answer(engine: Engine) -> list[GenerationResult]:
    """All at once, then one after the other."""
    streams = [engine.generate(request, draft) for request, draft in list_requests()]
    together = [finish(stream) for stream in streams]
    return together + [engine.run(request, draft) for request, draft in list_requests()]


def check_equal(found: list[GenerationResult], expected: list[GenerationResult]) -> None:
    for own, other in zip(found, expected, strict=True):
        assert own.token_ids == other.token_ids
        for score, target in zip(own.logprobs, other.logprobs, strict=True):
            assert score.logprob == pytest.approx(target.logprob, abs=1e-4)
            assert [token for token, _ in score.top] == [token for token, _ in target.top]


@pytest.mark.parametrize("family", ON_TWO)
def test_two_ranks_answer_as_one(family: str, tmp_path: Path) -> None:
    save(tmp_path, **FAMILIES[family])
    with Engine(Decoder(load(tmp_path, torch.float32)), TOKEN_BYTES, tiny_limits()) as engine:
        expected = answer(engine)
    with on_ranks(tmp_path) as engine:
        assert isinstance(engine.model, ShardDecoder)
        assert (engine.model.group._shared is not None) == can_share()
        for overlap in OVERLAPS:
            engine.forget_cached()
            hide_sums(engine, overlap)
            check_equal(answer(engine), expected)


@pytest.mark.long
def test_four_ranks_share_two_kv_heads_and_an_odd_vocabulary(tmp_path: Path) -> None:
    save(tmp_path, vocab_size=VOCAB_SIZE - 1, tied_embeddings=True, architecture="LlamaForCausalLM", qkv_bias=False)
    with Engine(Decoder(load(tmp_path, torch.float32)), TOKEN_BYTES[:-1], tiny_limits()) as engine:
        expected = answer(engine)
    with Engine(start_ranks(RankSetup(tmp_path, 4, torch.float32)), TOKEN_BYTES[:-1], tiny_limits()) as engine:
        check_equal(answer(engine), expected)


def test_without_shared_memory_sums_go_through_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    with Engine(Decoder(load(tmp_path, torch.float32)), TOKEN_BYTES, tiny_limits()) as engine:
        expected = answer(engine)
    monkeypatch.setattr("engine.tensor_parallel.group.can_share", lambda: False)  # on one of two ranks
    with on_ranks(tmp_path) as engine:
        assert isinstance(engine.model, ShardDecoder)
        assert engine.model.group._shared is None
        check_equal(answer(engine), expected)


def test_weights_and_kv_in_fewer_bits_are_shared_too(tmp_path: Path) -> None:
    save(tmp_path)
    whole = Decoder(load(tmp_path, torch.float32), kv_int8=True)
    with on_ranks(tmp_path, kv_int8=True) as engine:
        assert isinstance(engine.model, ShardDecoder)
        assert engine.model.weights.num_bytes < 0.55 * whole.weights.num_bytes
        assert engine.run(GenerationRequest([7, 3, 5], 16)).token_ids


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_a_rank_that_dies_ends_the_engine_with_what_to_do(when: str, tmp_path: Path) -> None:
    save(tmp_path)
    with on_ranks(tmp_path) as engine:
        assert isinstance(engine.model, ShardDecoder)
        engine.run(GenerationRequest([7, 3], 4))
        stream = engine.generate(GenerationRequest([7, 3], 200)) if when == "busy" else None
        (rank,) = multiprocessing.active_children()
        rank.kill()
        if stream is None:
            deadline = time.monotonic() + 10
            while engine.model.group.lost is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert isinstance(engine.fault, RankLost)
            said = "rank 1 of this model has ended (exit code -9); start the service anew"
            assert engine.model.group.lost == said
        with pytest.raises((EngineFault, EngineClosed), match="start the service anew"):
            finish(stream or engine.generate(GenerationRequest([7, 3], 200)))
        assert isinstance(engine.fault, RankLost)
    assert not multiprocessing.active_children()


def test_ranks_talk_on_this_machine_alone_and_end_with_the_first_one(tmp_path: Path) -> None:
    save(tmp_path)
    places = [Path(find_memory_folder() or tempfile.gettempdir()), Path(tempfile.gettempdir())]
    folders = {folder for place in places for folder in place.glob("hunk-ranks-*")}
    with on_ranks(tmp_path):
        (rank,) = multiprocessing.active_children()
        sockets = [each for pid in (os.getpid(), rank.pid) for each in psutil.Process(pid).net_connections("inet")]
        assert len(sockets) >= 2
        assert {each.laddr.ip for each in sockets} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        rank.terminate()  # as systemd does to all processes of a service
        rank.join(0.5)
        assert rank.is_alive()
    assert not multiprocessing.active_children()
    assert {folder for place in places for folder in place.glob("hunk-ranks-*")} <= folders


def test_what_does_not_divide_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="4 query heads do not divide into 3 ranks"):
        start_ranks(RankSetup(save(tmp_path), 3, torch.float32))
    assert not multiprocessing.active_children()
    for changes, said in (
        ({"num_heads": 6, "num_kv_heads": 3}, "6 query heads do not divide into 4"),
        ({"ffn_size": 42}, "42 numbers of the feed-forward part do not divide into 4"),
        ({"num_heads": 12, "num_kv_heads": 3}, "3 KV heads do not divide into 4"),
        (OLMO2, "norms over all heads"),
    ):
        with pytest.raises(WeightsError, match=said):
            Shard(1, 4).narrow(tiny_config(**changes))


def test_rows_are_sent_and_halved_as_they_are() -> None:
    random = Random(1)
    for count in (1, 2, 3, 7):
        sequences = []
        for _ in range(count):
            start, length = random.randrange(20), random.randrange(1, 9)
            pages = [random.randrange(90) for _ in range(-(-(start + length) // 4))]
            sequences.append(PagedRows(random_ids(random, length), range(start, start + length), pages))
        again = unpack_rows(pack_rows(sequences, 4))
        assert [list(each.token_ids) for each in again] == [list(each.token_ids) for each in sequences]
        assert [list(each.positions) for each in again] == [list(each.positions) for each in sequences]
        assert [list(each.pages) for each in again] == [list(each.pages) for each in sequences]
        first, second = split_rows(again)
        total = sum(each.num_rows for each in sequences)
        assert sum(each.num_rows for each in first) == total // 2
        joined = [token for half in (first, second) for each in half for token in each.token_ids]
        assert joined == [token for each in sequences for token in each.token_ids]
