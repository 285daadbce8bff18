"""The loop that its caller runs: sequences join and leave the batch, and each gets what it gets alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

import engine
from engine import ContinuousBatchingEngine, GenerationRequest, GenerationResult, KVCache, reset_all_caches
from engine.errors import DeadlineExceeded, DoesNotFit, RequestError
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_decoder, tiny_engine

LETTERS = b"abcdefghijklmnopqrstuvwxyz \n<>/=."


class Letters:
    """A token a letter."""

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(byte) for byte in text.encode()]

    def token_bytes(self) -> Sequence[bytes]:
        return TOKEN_BYTES


def batching(max_batch_size: int = 3, max_seq_len: int = 64) -> ContinuousBatchingEngine:
    return ContinuousBatchingEngine(tiny_decoder(), Letters(), "cpu", max_batch_size, max_seq_len)


def finished(batch: ContinuousBatchingEngine) -> dict[int, GenerationResult]:
    """All results, each step's batch within its size."""
    results: dict[int, GenerationResult] = {}
    while batch.scheduler.has_pending_work():
        for output in batch.step():
            assert output.result is not None
            assert output.id not in results
            results[output.id] = output.result
    return results


@pytest.mark.parametrize("max_batch_size", [1, 3, 9])
def test_each_gets_what_it_gets_alone(max_batch_size: int) -> None:
    batch = batching(max_batch_size)
    queue = [GenerationRequest(prompt=[number, 3, 14], max_new_tokens=4 + 5 * number) for number in range(6)]
    numbers = [batch.add_request(request) for request in queue]
    results = finished(batch)
    assert [results[number] for number in numbers] == [tiny_engine().run(request) for request in queue]
    assert len(set(numbers)) == len(queue)
    assert batch.step() == []


def test_a_request_joins_when_another_leaves_and_not_when_all_do() -> None:
    batch = batching(max_batch_size=2)
    lengths = [20, 3, 3, 3]
    numbers = [
        batch.add_request(GenerationRequest(prompt=[number, 1], max_new_tokens=length))
        for number, length in enumerate(lengths)
    ]
    left: list[int] = []
    num_steps = 0
    while batch.scheduler.has_pending_work():
        left += [output.id for output in batch.step()]
        num_steps += 1
        assert batch.scheduler.stats().num_running <= 2
    assert left == [*numbers[1:], numbers[0]]
    assert num_steps == 20, "the short ones took their turns beside the long one"


def test_one_that_comes_later_joins_the_pass() -> None:
    batch = batching()
    first = batch.add_request(GenerationRequest(prompt=[1, 2], max_new_tokens=10))
    for _ in range(5):
        assert batch.step() == []
    second = batch.add_request(GenerationRequest(prompt=[3, 4], max_new_tokens=2))
    assert batch.step() == []
    assert [output.id for output in batch.step()] == [second]
    assert finished(batch).keys() == {first}


def test_a_full_batch_of_full_sequences_is_never_preempted() -> None:
    batch = batching(max_batch_size=3, max_seq_len=50)
    for number in range(3):
        batch.add_request(GenerationRequest(prompt=[number], max_new_tokens=49))
    assert all(result.usage.preempted == 0 for result in finished(batch).values())


def test_text_is_encoded_and_ids_are_taken_as_they_are() -> None:
    batch = batching()
    text = batch.add_request(GenerationRequest(prompt="abc", max_new_tokens=9, stop=(b"z",)))
    ids = batch.add_request(GenerationRequest(prompt=[0, 1, 2], max_new_tokens=9, stop=(b"z",)))
    results = finished(batch)
    assert results[text] == results[ids]


def test_what_is_taken_back_comes_in_no_step() -> None:
    batch = batching()
    request = GenerationRequest(prompt=[1], max_new_tokens=9)
    first, second = batch.add_request(request), batch.add_request(request)
    batch.step()
    batch.cancel(first)
    assert finished(batch).keys() == {second}


def test_one_that_fails_comes_with_its_error() -> None:
    batch = batching()
    number = batch.add_request(GenerationRequest(prompt=[1], max_new_tokens=9, deadline_s=1e-9))
    (output,) = batch.step()
    assert output.id == number
    assert isinstance(output.error, DeadlineExceeded)
    assert not batch.scheduler.has_pending_work()


def test_what_does_not_fit_or_makes_no_sense_is_refused() -> None:
    batch = batching(max_seq_len=20)
    with pytest.raises(DoesNotFit, match="context of 20"):
        batch.add_request(GenerationRequest(prompt=[1], max_new_tokens=20))
    with pytest.raises(RequestError, match="token id outside"):
        batch.add_request(GenerationRequest(prompt=[VOCAB_SIZE], max_new_tokens=2))
    with pytest.raises(ValueError, match="the model is on cpu, not on meta"):
        ContinuousBatchingEngine(tiny_decoder(), Letters(), "meta", 1, 20)
    with pytest.raises(ValueError, match="max_num_seqs is 0"):
        batching(max_batch_size=0)
    assert not batch.scheduler.has_pending_work()


def test_plain_caches_hold_what_a_forward_pass_leaves_until_they_are_reset() -> None:
    decoder = tiny_decoder()
    config = decoder.config
    caches = KVCache.from_model_config(
        1, 8, config.num_layers, config.num_kv_heads, config.head_dim, dtype=torch.float32
    )
    token_ids = torch.tensor([1, 2, 3])
    first = decoder.forward(token_ids, caches)
    assert [cache.lengths for cache in caches] == [[3]] * config.num_layers
    assert not torch.equal(decoder.forward(token_ids, caches), first)
    reset_all_caches(caches)
    assert torch.equal(decoder.forward(token_ids, caches), first)


def test_the_package_offers_its_names_without_loading_torch_before_they_are_used() -> None:
    assert sorted(engine._HOMES) == engine.__all__
    for name in engine.__all__:
        assert getattr(engine, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        engine.Nothing  # noqa: B018
    code = "import sys, engine, engine.errors, engine.scheduler, engine.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
