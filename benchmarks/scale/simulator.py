"""Simulates sessions on replicas: what a router, a number of replicas and a link of the shared tier would give."""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import count
from operator import itemgetter
from typing import Literal

import numpy as np

from agent_runtime.models.config import DEFAULT_NUM_SEQS
from engine.engine_config import SchedulerConfig
from engine.prefix_tier.shared_prefixes import CHUNK_TOKENS
from engine.scheduler.scheduler import split_evenly

Route = Literal["round robin", "hash"]

Place = Callable[[str], str]
"""Returns the replica for a request of a session, from the session's name."""

LIMITS = SchedulerConfig()


@dataclass(frozen=True, slots=True)
class SessionTrace:
    """A session as the simulator sees it. first: tokens of its first prompt, of which `shared` are those of every
    session. added: tokens that each turn adds. thinks: seconds before each turn.
    """

    name: str
    shared: int
    first: int
    added: tuple[int, ...]
    thinks: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured times of a replica in seconds. overhead: of a request beside its passes. step: of a pass; token: of a
    token more; pair: of a token and a token before it.
    """

    overhead: float
    step: float
    token: float
    pair: float

    def time_step(self, num_tokens: int, num_pairs: int) -> float:
        """Return the seconds of a pass."""
        return self.step + self.token * num_tokens + self.pair * num_pairs


@dataclass(frozen=True, slots=True)
class Machine:
    """The rates of a replica by the number of busy ones on its machine, from 1 on; between and beyond them linear."""

    rates: Mapping[int, Rates]

    def time_step(self, num_tokens: int, num_pairs: int, num_busy: int) -> float:
        """Return the seconds of a pass while so many replicas of the machine are busy."""
        counts = sorted(self.rates)
        seconds = [self.rates[count].time_step(num_tokens, num_pairs) for count in counts]
        return float(np.interp(num_busy, counts, seconds))

    def time_overhead(self, num_busy: int) -> float:
        """Return the seconds of a request beside its passes."""
        counts = sorted(self.rates)
        return float(np.interp(num_busy, counts, [self.rates[count].overhead for count in counts]))


@dataclass(frozen=True, slots=True)
class Link:
    """The way to the shared tier: the server's one link, which all replicas use in turn."""

    bytes_per_s: float
    latency_s: float
    chunk_bytes: float


@dataclass(slots=True)
class SimulatedRun:
    """What a run gave. ttft: seconds to the first token of each turn. cached, prompt, best: tokens found, asked for,
    and found by one cache that keeps everything. fetched: tokens from the tier.
    """

    ttft: list[float] = field(default_factory=list)
    cached: int = 0
    prompt: int = 0
    best: int = 0
    fetched: int = 0


@dataclass(slots=True, eq=False)
class _Request:
    session: int
    started: float
    total: int
    left: int
    to_decode: int


@dataclass(slots=True, eq=False)
class _Replica:
    cached: dict[int, int] = field(default_factory=dict)
    waiting: deque[_Request] = field(default_factory=deque)
    running: list[_Request] = field(default_factory=list)
    is_busy: bool = False


def make_place(route: Route, names: Sequence[str], digest: Callable[[str], int] | None = None) -> Place:
    """Return a router over replicas. `digest`: of the hash; None: one of its own."""
    if route == "round robin":
        turns = count()
        return lambda name: names[next(turns) % len(names)]
    return HashRing(names, digest or (lambda key: int.from_bytes(blake2b(key.encode(), digest_size=8).digest()))).find


class HashRing:
    """Consistent hashing as Serve's: each replica has 100 places on a ring, and a key the next one."""

    def __init__(self, names: Sequence[str], digest: Callable[[str], int]) -> None:
        self._digest = digest
        self._places = sorted((digest(f"{name}:{at}"), name) for name in names for at in range(100))

    def find(self, key: str) -> str:
        """Return the replica of a key."""
        at = bisect(self._places, self._digest(key), key=itemgetter(0))
        return self._places[at % len(self._places)][1]


def simulate(
    sessions: Sequence[SessionTrace],
    names: Sequence[str],
    place: Place,
    machine: Machine,
    answer_tokens: int,
    *,
    link: Link | None = None,
    is_shared: bool = True,
    max_running: int = DEFAULT_NUM_SEQS,
) -> SimulatedRun:
    """Run all sessions beside each other; each sends its next turn when it has thought about the last answer.

    `names`: of the replicas. `place`: the router. `is_shared`: all replicas share one machine; else each has its own.
    """
    return _Simulation(sessions, names, place, machine, answer_tokens, link, is_shared, max_running).run()


class _Simulation:
    def __init__(
        self,
        sessions: Sequence[SessionTrace],
        names: Sequence[str],
        place: Place,
        machine: Machine,
        answer_tokens: int,
        link: Link | None,
        is_shared: bool,
        max_running: int,
    ) -> None:
        self.sessions, self.place, self.machine, self.link = sessions, place, machine, link
        self.answer_tokens, self.is_shared, self.max_running = answer_tokens, is_shared, max_running
        self.replicas = {name: _Replica() for name in names}
        self.made = SimulatedRun()
        self.now = self.link_free = 0.0
        self.turns = [0] * len(sessions)
        self.sizes = [session.first for session in sessions]
        self.stored = [0] * len(sessions)
        self._ticks = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> SimulatedRun:
        for number, session in enumerate(self.sessions):
            self._after(session.thinks[0], partial(self._send, number))
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return self.made

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._ticks), happen))

    def _count_busy(self) -> int:
        return sum(replica.is_busy for replica in self.replicas.values()) if self.is_shared else 1

    def _send(self, number: int) -> None:
        session = self.sessions[number]
        replica = self.replicas[self.place(session.name)]
        known = self.sizes[number] if self.turns[number] else session.shared
        self.sizes[number] += session.added[self.turns[number]]
        total = self.sizes[number]
        found = replica.cached.get(number, session.shared if replica.cached else 0)
        fetched, wait_s = self._fetch(number, found)
        self.made.cached += found + fetched
        self.made.fetched += fetched
        self.made.prompt += total
        self.made.best += known
        request = _Request(number, self.now, total, total - found - fetched, self.answer_tokens)
        self._after(wait_s, partial(self._arrive, replica, request))

    def _fetch(self, number: int, found: int) -> tuple[int, float]:
        """Return the tokens that come from the tier, if that is quicker than computing them, and the seconds."""
        first, last = found // CHUNK_TOKENS, self.stored[number] // CHUNK_TOKENS
        if self.link is None or first >= last:
            return 0, 0.0
        gained = last * CHUNK_TOKENS - found
        transfer_s = (last - first) * self.link.chunk_bytes / self.link.bytes_per_s
        seconds = max(0.0, self.link_free - self.now) + self.link.latency_s + transfer_s
        if seconds > self.machine.time_step(gained, gained * (found + gained // 2), 1):
            return 0, 0.0
        self.link_free = max(self.link_free, self.now) + transfer_s
        return gained, seconds

    def _arrive(self, replica: _Replica, request: _Request) -> None:
        replica.waiting.append(request)
        self._start(replica)

    def _start(self, replica: _Replica) -> None:
        """Begin a pass: a token of each answer that has begun, and prompts share what is left equally."""
        if replica.is_busy:
            return
        while replica.waiting and len(replica.running) < self.max_running:
            replica.running.append(replica.waiting.popleft())
        if not replica.running:
            return
        decodes = [request for request in replica.running if not request.left]
        budget = LIMITS.max_batched_tokens - len(decodes)
        if decodes:
            budget = min(budget, LIMITS.prefill_beside_decodes)
        num_tokens, num_pairs = len(decodes), sum(request.total for request in decodes)
        parts: list[tuple[_Request, int]] = []
        prefills = [request for request in replica.running if request.left]
        shares = split_evenly([request.left for request in prefills], budget)
        for request, part in zip(prefills, shares, strict=True):
            parts.append((request, part))
            num_tokens += part
            num_pairs += part * (request.total - request.left + part // 2)
        replica.is_busy = True
        seconds = self.machine.time_step(num_tokens, num_pairs, self._count_busy())
        self._after(seconds, partial(self._end, replica, decodes, parts))

    def _end(self, replica: _Replica, decodes: list[_Request], parts: list[tuple[_Request, int]]) -> None:
        overhead = self.machine.time_overhead(self._count_busy())
        replica.is_busy = False
        for request, part in parts:
            request.left -= part
            if not request.left:
                decodes.append(request)
        for request in decodes:
            if request.to_decode == self.answer_tokens:
                self.made.ttft.append(self.now - request.started + overhead)
            request.to_decode -= 1
            if not request.to_decode:
                replica.running.remove(request)
                self._finish(replica, request, overhead)
        self._start(replica)

    def _finish(self, replica: _Replica, request: _Request, overhead: float) -> None:
        number = request.session
        replica.cached[number] = request.total
        self.stored[number] = request.total
        self.turns[number] += 1
        session = self.sessions[number]
        if self.turns[number] < len(session.added):
            self._after(overhead + session.thinks[self.turns[number]], partial(self._send, number))
