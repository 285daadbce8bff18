"""Fetches the KV of a prompt's prefix from a store that engines share, if that is quicker than computing it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from queue import Empty, Full, Queue
from threading import Condition, Lock, Thread

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_cache import KVPages, page_runs
from engine.kv_cache.prefix_cache import page_key
from engine.kv_pool import KVPool
from engine.prefix_tier.tier import ChunkHeader, ChunkSeal, NotThisChunk, PrefixTier, TierFault, ValkeyTier

log = logging.getLogger(__name__)

CHUNK_TOKENS = 128
"""Tokens of a stored value: 1.6 MB for a 0.5B, 7 MB for a 7B."""

SLACK = 0.04
"""The share of a prefix's computing time that a fetch may lose: it is given up once it is so far behind."""

RETAIN_SECONDS = 5.0
"""How long fetched KV is kept before other cached KV, so that it is there when its request is admitted."""

MOST_FETCHES = 8
"""Requests that wait for a fetch at the same time; others are computed."""

MOST_WAITING_BYTES = 256 << 20
"""Memory for chunks that wait to be written; more are dropped."""

MOST_ARRIVED = 8
"""Chunks of a fetch that wait to be placed; then its thread waits for the engine."""

MOST_KNOWN = 1 << 16
"""Names that are remembered as stored."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""How long the store is left alone after a fault, and at most after further ones."""

WAIT_SHARE, MOST_SHARE = 0.3, 8.0
"""Time of a chunk on the link, as a share of computing it: up to the first a request waits for its chunks, up to the
second they come from the back while it is computed from the front, and beyond that none are fetched.
"""

MOST_BACK_BYTES = 256 << 20
"""Memory for the chunks of a fetch from the back, which wait until computing has come to them."""

PROBE_S = 30.0
"""How often a link that was too slow is tried again."""

LONGEST_MESSAGE = 200
"""Characters of an error that are logged: it may repeat what a stranger has answered."""

POLL_SECONDS = 0.005
"""How long an idle engine waits for the next chunk before it looks for requests."""


@dataclass(slots=True)
class TierStats:
    """Counts of chunks since the start, unless another unit is named.

    num_hit, num_missed: asked for, and there or not. num_rejected: damaged or foreign. num_given_up: fetches that were
    slower than computing. num_written, num_dropped: put into the store, and not, because too many waited or it was left
    alone. num_faults: failures of the store. bytes_read, bytes_written: of values. is_paused: whether the store is left
    alone after a fault.
    """

    num_hit: int = 0
    num_missed: int = 0
    num_rejected: int = 0
    num_given_up: int = 0
    num_written: int = 0
    num_dropped: int = 0
    num_faults: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    is_paused: bool = False


@dataclass(slots=True, eq=False)
class PrefixFetch:
    """One request's fetch. first: the token that the first chunk begins with. rate: tokens that the engine computes in
    a second. is_from_back: the last chunk that the store has comes first, then the one before it. end: the token behind
    that one. num_arrived: chunks so far. arrived: those of them that are not placed, as they came.
    """

    root: bytes
    token_ids: Sequence[int]
    first: int
    names: list[bytes]
    rate: float
    started: float
    is_from_back: bool = False
    end: int = 0
    num_arrived: int = 0
    arrived: list[Tensor] = field(default_factory=list)
    is_done: bool = False
    is_stopped: bool = False

    def is_behind(self, now: float) -> bool:
        """Return whether computing, had it begun with the fetch, would be ahead by more than the slack."""
        total_s = len(self.names) * CHUNK_TOKENS / self.rate
        return self.num_arrived * CHUNK_TOKENS < self.rate * (now - self.started - SLACK * total_s)


class SharedPrefixes:
    """The prefixes that this engine reads from a store and writes to it.

    The engine's thread calls the methods; other threads wait for the store. A fault of the store costs time only.
    """

    def __init__(
        self,
        tier: PrefixTier,
        seal: ChunkSeal,
        pool: KVPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tier, self._seal, self._pool, self._clock = tier, seal, pool, clock
        keys = pool.keys[0]
        self._shape = (2 if pool.values else 1, len(pool.keys), CHUNK_TOKENS, *keys.shape[1:])
        self._dtype = keys.dtype
        self._lock = Condition(Lock())
        self._stats = TierStats()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._pause_s, self._paused_until = 0.0, 0.0
        self._bytes_per_s, self._probe_at = 0.0, 0.0
        self._num_fetches = 0
        self._is_closed = False
        self._fetchers = ThreadPoolExecutor(MOST_FETCHES, thread_name_prefix="prefix-fetch")
        self._waiting: Queue[tuple[bytes, bytes, Tensor] | None] = Queue(
            max(1, MOST_WAITING_BYTES // self._chunk_bytes)
        )
        self._writer = Thread(target=self._write_behind, name="prefix-write", daemon=True)
        self._writer.start()
        self._fetchers.submit(self._check_server)

    def start_fetch(
        self, root: bytes, token_ids: Sequence[int], num_cached: int, tokens_per_s: float
    ) -> PrefixFetch | None:
        """Start to fetch the chunks of a prompt behind its cached prefix, from the back where the link is slow; None if
        there are none, or the link is so slow that they would not pay.
        """
        num_chunks, first = (len(token_ids) - 1) // CHUNK_TOKENS, num_cached // CHUNK_TOKENS
        now = self._clock()
        if first >= num_chunks or now < self._paused_until or self._num_fetches >= MOST_FETCHES:
            return None
        share = self._chunk_bytes / self._bytes_per_s * tokens_per_s / CHUNK_TOKENS if self._bytes_per_s else 0.0
        if share > MOST_SHARE and now < self._probe_at:
            return None
        names = list(map(self._seal.make_name, _list_digests(root, token_ids, num_chunks)))[first:]
        fetch = PrefixFetch(root, token_ids, first * CHUNK_TOKENS, names, tokens_per_s, now)
        fetch.is_from_back = share > WAIT_SHARE
        self._num_fetches += 1
        self._fetchers.submit(self._fetch, fetch)
        return fetch

    def is_over(self, fetch: PrefixFetch) -> bool:
        """Return whether the request has to wait no longer. A fetch that falls behind is given up."""
        with self._lock:
            if not fetch.is_done and fetch.is_behind(self._clock()):
                fetch.is_stopped = fetch.is_done = True
                self._lock.notify_all()
                self._stats.num_given_up += 1
            return fetch.is_done

    def stop(self, fetch: PrefixFetch) -> None:
        """End a fetch; what arrives from now on is dropped."""
        with self._lock:
            fetch.is_stopped = fetch.is_done = True
            self._lock.notify_all()

    def wait(self, fetches: Sequence[PrefixFetch]) -> None:
        """Wait a moment for the next chunk."""
        with self._lock:
            if not any(fetch.is_done for fetch in fetches):
                self._lock.wait(POLL_SECONDS)

    @torch.inference_mode()
    def place(self, pages: KVPages, fetch: PrefixFetch, sequence_id: int) -> int:
        """Put the chunks that arrived into the prefix cache; return the number of tokens that this added.

        `sequence_id`: one that no sequence has. Nothing is placed where pages are short.
        """
        with self._lock:
            chunks, fetch.arrived = fetch.arrived, []
            end = fetch.first + fetch.num_arrived * CHUNK_TOKENS
            self._lock.notify_all()
        begin = end - len(chunks) * CHUNK_TOKENS
        if not chunks:
            return 0
        token_ids = [*fetch.token_ids[:end], 0]  # the last one is never matched
        num_matched = pages.open(sequence_id, token_ids, fetch.root, is_counted=False)
        self._pool.copy(pages.take_copies())
        try:
            if num_matched < begin or num_matched >= end or not pages.grow(sequence_id, end):
                return 0
            self._write_chunks(pages, sequence_id, chunks, begin, num_matched)
            pages.commit(sequence_id, token_ids[num_matched:end])
            return end - num_matched
        finally:
            pages.close(sequence_id, RETAIN_SECONDS)

    @torch.inference_mode()
    def take_over(self, pages: KVPages, fetch: PrefixFetch, sequence_id: int, num_computed: int) -> int:
        """Write the chunks that came from the back into the pages of a sequence, if it was computed up to the first of
        them, and end the fetch. Return the number of tokens whose KV is there now.
        """
        with self._lock:
            first = fetch.end - fetch.num_arrived * CHUNK_TOKENS
            if not fetch.num_arrived or num_computed < first:
                return num_computed
            chunks, fetch.arrived = fetch.arrived[::-1], []
            fetch.is_stopped = fetch.is_done = True
        self._write_chunks(pages, sequence_id, chunks, first, num_computed)
        return max(num_computed, fetch.end)

    @torch.inference_mode()
    def keep(self, pages: KVPages, sequence_id: int, root: bytes, token_ids: Sequence[int]) -> None:
        """Have the whole chunks of an open sequence whose KV is exact written to the store, if it lacks them.

        token_ids: those whose KV depends on `root` and the tokens before alone.
        """
        num_chunks = min(pages.num_exact(sequence_id), len(token_ids)) // CHUNK_TOKENS
        if not num_chunks:
            return
        names = map(self._seal.make_name, _list_digests(root, token_ids, num_chunks))
        with self._lock:
            missing = [(at, name) for at, name in enumerate(names) if name not in self._known]
        table = pages.page_table(sequence_id)
        for at, name in missing:
            if self._clock() < self._paused_until or self._waiting.full():
                self._stats.num_dropped += 1
                continue
            runs = page_runs(table, pages.page_size, at * CHUNK_TOKENS, (at + 1) * CHUNK_TOKENS)
            try:
                self._waiting.put_nowait((name, root, self._read(runs)))
                self._remember(name)
            except Full:
                self._stats.num_dropped += 1

    def stats(self) -> TierStats:
        """Return the counts."""
        with self._lock:
            return replace(self._stats, is_paused=self._clock() < self._paused_until)

    def close(self) -> None:
        """Stop all threads; what waits to be written is dropped. Fetches have to be stopped before."""
        self._is_closed = True
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        self._waiting.put(None)
        self._tier.close()

    @property
    def _chunk_bytes(self) -> int:
        num_values = 1
        for size in self._shape:
            num_values *= size
        return num_values * self._dtype.itemsize

    def _make_header(self, root: bytes) -> ChunkHeader:
        return ChunkHeader(root, str(self._dtype).removeprefix("torch."), self._shape)

    def _read(self, runs: Sequence[tuple[int, int]]) -> Tensor:
        """Return a copy of the KV of token slots, on the CPU."""
        parts = (self._pool.keys, self._pool.values)
        chunk = torch.empty(self._shape, dtype=self._dtype)
        for part, tensors in enumerate(parts):
            for layer, tensor in enumerate(tensors):
                at = 0
                for first, last in runs:
                    chunk[part, layer, at : at + last - first] = tensor[first:last]
                    at += last - first
        return chunk

    def _write_chunks(
        self, pages: KVPages, sequence_id: int, chunks: Sequence[Tensor], begin: int, num_there: int
    ) -> None:
        """Write chunks, of which the first begins at token `begin`, but not the KV of the first `num_there` tokens."""
        table = pages.page_table(sequence_id)
        for number, chunk in enumerate(chunks):
            start = begin + number * CHUNK_TOKENS
            skipped = max(0, num_there - start)
            if skipped < CHUNK_TOKENS:
                runs = page_runs(table, pages.page_size, start + skipped, start + CHUNK_TOKENS)
                self._write(chunk[:, :, skipped:], runs)

    def _write(self, chunk: Tensor, runs: Sequence[tuple[int, int]]) -> None:
        for part, tensors in enumerate((self._pool.keys, self._pool.values)):
            for layer, tensor in enumerate(tensors):
                at = 0
                for first, last in runs:
                    tensor[first:last] = chunk[part, layer, at : at + last - first]
                    at += last - first

    def _fetch(self, fetch: PrefixFetch) -> None:
        """In a thread: receive and open the chunks until one is missing or the fetch is stopped."""
        header, begun, num_bytes, waited_s = self._make_header(fetch.root), self._clock(), 0, 0.0
        try:
            names = self._list_from_back(fetch) if fetch.is_from_back else fetch.names
            with closing(self._tier.get_many(names)) as values:
                for name, value in zip(names, values, strict=True):
                    num_bytes += len(value or b"")  # also of a chunk that is too late: it tells how slow the link is
                    if fetch.is_stopped:
                        break
                    if value is None:
                        self._count(num_missed=1)
                        break
                    chunk = torch.empty(self._shape, dtype=self._dtype)
                    self._seal.open_into(name, header, value, _view_bytes(chunk))
                    self._count(num_hit=1, bytes_read=len(value))
                    self._remember(name)
                    with self._lock:
                        fetch.arrived.append(chunk)
                        fetch.num_arrived += 1
                        self._lock.notify_all()
                        waiting = self._clock()
                        self._lock.wait_for(
                            lambda: fetch.is_stopped or fetch.is_from_back or len(fetch.arrived) < MOST_ARRIVED
                        )
                        waited_s += self._clock() - waiting
            self._pause_s = 0.0
        except NotThisChunk:
            self._count(num_rejected=1)
        except TierFault as error:
            self._pause(error)
        except Exception:
            log.exception("KV of a shared prefix could not be read; it is computed")
        finally:
            self._measure(num_bytes, self._clock() - begun - waited_s)
            with self._lock:
                self._num_fetches -= 1
                fetch.is_done = True
                self._lock.notify_all()

    def _list_from_back(self, fetch: PrefixFetch) -> list[bytes]:
        """Return the names of the chunks that the store has of a prefix, the last one first."""
        num_there = self._tier.count_first(fetch.names)
        self._count(num_missed=num_there < len(fetch.names))
        fetch.end = fetch.first + num_there * CHUNK_TOKENS
        most = max(1, MOST_BACK_BYTES // self._chunk_bytes)
        return fetch.names[max(0, num_there - most) : num_there][::-1]

    def _measure(self, num_bytes: int, seconds: float) -> None:
        """Average the rate of the link over the last fetches."""
        if num_bytes:
            rate = num_bytes / max(seconds, 1e-6)
            self._bytes_per_s = (self._bytes_per_s + rate) / 2 if self._bytes_per_s else rate
            self._probe_at = self._clock() + PROBE_S

    def _write_behind(self) -> None:
        while (entry := self._waiting.get()) is not None:
            name, root, chunk = entry
            if self._clock() < self._paused_until:
                self._forget(name)
                self._count(num_dropped=1)
                continue
            try:
                value = self._seal.seal(name, self._make_header(root), _view_bytes(chunk))
                self._tier.put(name, value)
                self._count(num_written=1, bytes_written=len(value))
            except TierFault as error:
                self._pause(error)
            except Exception:
                log.exception("KV of a shared prefix could not be written")

    def _check_server(self) -> None:
        try:
            wrong = self._tier.find_misconfiguration()
        except TierFault as error:
            self._pause(error)
            return
        if wrong:
            log.warning("the shared tier should be configured otherwise: %s", wrong)

    def _pause(self, error: TierFault) -> None:
        """Leave the store alone for a while; it may come back empty, so nothing is known of it any more."""
        with self._lock:
            if not self._pause_s and not self._is_closed:
                said = str(error)[:LONGEST_MESSAGE]
                log.warning("the shared tier cannot be used, and prefixes are computed: %s", said)
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
            self._paused_until = self._clock() + self._pause_s
            self._known.clear()
            self._stats.num_faults += 1

    def _count(self, **added: int) -> None:
        with self._lock:
            for name, value in added.items():
                setattr(self._stats, name, getattr(self._stats, name) + value)

    def _remember(self, name: bytes) -> None:
        with self._lock:
            self._known[name] = None
            self._known.move_to_end(name)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def _forget(self, name: bytes) -> None:
        with self._lock:
            self._known.pop(name, None)


def build_shared_prefixes(config: EngineConfig, model: Decoder, pool: KVPool) -> SharedPrefixes | None:
    """Return the shared prefixes of an engine; None without a store, or for a model with a window.

    Raises EngineError where a package is missing or the URL cannot be read.
    """
    if not config.tier_url or model.config.window is not None:
        return None
    return SharedPrefixes(ValkeyTier(config.tier_url), ChunkSeal(config.tier_key), pool)


def _list_digests(root: bytes, token_ids: Sequence[int], num_chunks: int) -> list[bytes]:
    """Return the digest of the chain at the end of each chunk."""
    digests, digest = [], root
    for at in range(num_chunks):
        digest = page_key(digest, token_ids[at * CHUNK_TOKENS : (at + 1) * CHUNK_TOKENS])
        digests.append(digest)
    return digests


def _view_bytes(chunk: Tensor) -> memoryview:
    return chunk.view(torch.uint8).numpy().reshape(-1).data
