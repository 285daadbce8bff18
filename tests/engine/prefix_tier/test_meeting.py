"""Over a slow link a prompt is computed from the front while chunks come from the back: the same answer for less."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from engine.core import EngineCore
from engine.engine_config import EngineConfig, SchedulerConfig
from engine.errors import QueueFull
from engine.prefix_tier.shared_prefixes import CHUNK_TOKENS, PrefixFetch, SharedPrefixes
from engine.prefix_tier.tier import ChunkSeal, TierFault
from engine.types import GenerationRequest, GenerationResult
from tests.engine.prefix_tier.test_shared_prefixes import KEY, NUM_TOKENS, PROMPT, tiny_model
from tests.engine.tiny import TOKEN_BYTES

STEP_TOKENS = 64


class Store:
    """A `PrefixTier` in memory. num_sent: chunks that it sends of a fetch before it waits."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.num_sent = 1000
        self.asked: list[Sequence[bytes]] = []
        self.goes_on = threading.Event()

    def get_many(self, keys: Sequence[bytes]) -> Generator[bytes | None, None, None]:
        self.asked.append(keys)
        for number, key in enumerate(keys):
            if number == self.num_sent:
                self.goes_on.wait(20)
                raise TierFault("the link is broken")
            yield self.values.get(key)

    def count_first(self, keys: Sequence[bytes]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self.values), len(keys))

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def find_misconfiguration(self) -> str:
        return ""

    def close(self) -> None:
        self.goes_on.set()


@contextmanager
def core_at(store: Store, monkeypatch: pytest.MonkeyPatch, **config: object) -> Iterator[EngineCore]:
    """An engine whose link takes as long for a chunk as computing it does."""
    monkeypatch.setattr(
        "engine.core.build_shared_prefixes", lambda config, model, pool: SharedPrefixes(store, ChunkSeal(KEY), pool)
    )
    limits = SchedulerConfig(max_batched_tokens=STEP_TOKENS, prefill_beside_decodes=STEP_TOKENS, max_num_seqs=4)
    settings = EngineConfig(2048, scheduler=limits, check_integrity=True, **config)  # type: ignore[arg-type]
    with closing(EngineCore(tiny_model(), TOKEN_BYTES, settings)) as core:
        yield core


def slow_down(core: EngineCore, share: float = 1.0) -> None:
    """Have the link seem to take this share of the time of computing a chunk."""
    assert core.shared is not None
    chunk_s = share * CHUNK_TOKENS * core._seconds_per_token
    core.shared._bytes_per_s = core.shared._chunk_bytes / chunk_s
    core.shared._probe_at = time.monotonic() + 100


def run(core: EngineCore, request: int) -> GenerationResult:
    while True:
        for output in core.step():
            if output.id == request:
                if output.error is not None:
                    raise output.error
                if output.result is not None:
                    return output.result


def meeting_of(core: EngineCore) -> PrefixFetch:
    assert core._fetches is not None
    ((_, fetch),) = core._fetches._meeting.values()
    return fetch


def wait_until(fetch: PrefixFetch, num_arrived: int, *, is_done: bool = False) -> None:
    deadline = time.monotonic() + 10
    while fetch.num_arrived < num_arrived or fetch.is_done < is_done:
        assert time.monotonic() < deadline, fetch
        time.sleep(0.005)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with the chunks of the prompt."""
    store = Store()
    with core_at(store, monkeypatch) as core:
        run(core, core.add(GenerationRequest(PROMPT, 6)))
        deadline = time.monotonic() + 10
        while len(store.values) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        core.reset()
    store.asked.clear()
    store.goes_on.clear()
    yield store
    store.close()


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    with core_at(Store(), monkeypatch) as core:
        return run(core, core.add(GenerationRequest(PROMPT, 6))).token_ids


@pytest.mark.parametrize(("num_sent", "num_taken"), [(3, 5), (2, 4), (1, 2)])
def test_the_front_is_computed_and_the_back_taken(
    store: Store, expected: list[int], monkeypatch: pytest.MonkeyPatch, num_sent: int, num_taken: int
) -> None:
    store.num_sent = num_sent
    with core_at(store, monkeypatch) as core:
        slow_down(core)
        request = core.add(GenerationRequest(PROMPT, 6))
        wait_until(meeting_of(core), num_sent)
        result = run(core, request)
        assert result.token_ids == expected
        assert result.usage.cached == num_taken * STEP_TOKENS
        assert result.usage.recomputed == NUM_TOKENS - num_taken * STEP_TOKENS
        assert store.asked == [list(reversed(sorted_names(store, core)))]
        again = run(core, core.add(GenerationRequest(PROMPT, 6)))
        assert (again.token_ids, again.usage.cached) == (expected, NUM_TOKENS - 1), "all of it is cached now"


def sorted_names(store: Store, core: EngineCore) -> list[bytes]:
    """Return the names of the prompt's chunks in order."""
    from engine.prefix_tier.shared_prefixes import _list_digests

    assert core.shared is not None
    root = core._find_root(GenerationRequest(PROMPT, 6))[1]
    return [core.shared._seal.make_name(digest) for digest in _list_digests(root, PROMPT, 3)]


def test_chunks_that_the_store_has_lost_are_computed(
    store: Store, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with core_at(store, monkeypatch) as core:
        del store.values[sorted_names(store, core)[2]]
        slow_down(core)
        request = core.add(GenerationRequest(PROMPT, 6))
        fetch = meeting_of(core)
        wait_until(fetch, 2)
        result = run(core, request)
        assert (result.token_ids, result.usage.cached) == (expected, 3 * STEP_TOKENS)
        assert fetch.end == 2 * CHUNK_TOKENS


def test_a_damaged_chunk_ends_the_fetch(store: Store, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with core_at(store, monkeypatch) as core:
        name = sorted_names(store, core)[1]
        store.values[name] = store.values[name][:-1] + bytes([store.values[name][-1] ^ 1])
        slow_down(core)
        request = core.add(GenerationRequest(PROMPT, 6))
        wait_until(meeting_of(core), 1, is_done=True)
        result = run(core, request)
        assert (result.token_ids, result.usage.cached) == (expected, 2 * STEP_TOKENS)
        assert core.shared is not None
        assert core.shared.stats().num_rejected == 1


def test_chunks_that_come_too_late_are_dropped(
    store: Store, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.num_sent = 0
    with core_at(store, monkeypatch) as core:
        slow_down(core)
        request = core.add(GenerationRequest(PROMPT, 6))
        fetch = meeting_of(core)
        result = run(core, request)
        assert (result.token_ids, result.usage.cached) == (expected, 0)
        assert fetch.is_stopped
        assert core._fetches is not None
        assert not core._fetches._meeting


def test_a_request_can_be_cancelled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with core_at(store, monkeypatch) as core:
        slow_down(core)
        request = core.add(GenerationRequest(PROMPT, 6))
        fetch = meeting_of(core)
        core.step()
        core.cancel(request)
        assert fetch.is_stopped
        core.check_integrity()
        assert not core.has_pending_work()


def test_a_sequence_that_has_lost_its_pages_meets_later(
    store: Store, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.num_sent = 1
    with core_at(store, monkeypatch) as core:
        slow_down(core)
        request = core.add(GenerationRequest(PROMPT, 6))
        wait_until(meeting_of(core), 1)
        for _ in range(2):
            core.step()
        sequence, _ = core._live[request]
        core.scheduler._preempt(sequence)
        result = run(core, request)
        assert (result.token_ids, result.usage.preempted) == (expected, 1)
        assert result.usage.cached == 2 * STEP_TOKENS


@pytest.mark.parametrize(("share", "way"), [(0.2, "front"), (0.5, "back"), (7.0, "back"), (9.0, "none")])
def test_the_link_decides_from_where(store: Store, monkeypatch: pytest.MonkeyPatch, share: float, way: str) -> None:
    with core_at(store, monkeypatch) as core:
        assert core.shared is not None
        slow_down(core, share)
        root = core._find_root(GenerationRequest(PROMPT, 6))[1]
        fetch = core.shared.start_fetch(root, PROMPT, 0, 1 / core._seconds_per_token)
        found = "none" if fetch is None else "back" if fetch.is_from_back else "front"
        if fetch is not None:
            core.shared.stop(fetch)
        assert found == way


def test_more_requests_than_there_is_memory_for_are_computed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.num_sent = 0
    with core_at(store, monkeypatch) as core:
        slow_down(core)
        requests = [core.add(GenerationRequest(PROMPT, 6)) for _ in range(6)]
        assert core._fetches is not None
        assert len(core._fetches._meeting) == 4
        for request in requests:
            core.cancel(request)
        assert not core._fetches._meeting


def test_a_request_that_finds_no_place_leaves_no_fetch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with core_at(store, monkeypatch) as core:
        slow_down(core)
        monkeypatch.setattr(core.scheduler._waiting, "_max_waiting", 0)
        with pytest.raises(QueueFull):
            core.add(GenerationRequest(PROMPT, 6))
        assert core._fetches is not None
        assert not core._fetches._meeting


def test_a_first_chunk_that_comes_too_late_tells_how_slow_the_link_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each request would wait for it in vain."""
    get_many = store.get_many

    def get_late(keys: Sequence[bytes]) -> Generator[bytes | None, None, None]:
        store.goes_on.wait(20)
        yield from get_many(keys)

    monkeypatch.setattr(store, "get_many", get_late)
    with core_at(store, monkeypatch) as core:
        assert core.shared is not None
        assert run(core, core.add(GenerationRequest(PROMPT, 6))).usage.cached == 0
        assert core.shared.stats().num_given_up == 1
        store.goes_on.set()
        deadline = time.monotonic() + 10
        while not core.shared._bytes_per_s:
            assert time.monotonic() < deadline
            time.sleep(0.005)
