"""The soak: callers of one engine, checks of time, memory and bookkeeping, and the replay at the end."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.engine import Engine
from engine.errors import EngineError
from engine.request import RequestState
from engine.scheduler import ScheduledSequence
from engine.types import Output
from engine.worker import AsyncStream, Stream, Ticket
from tests.soak.callers import call_from_loop, call_from_thread
from tests.soak.ledger import Ledger, replay
from tests.soak.traffic import Setting, Traffic

# Memory must stay flat: the process's, and the engine's objects.


LEAST_SECONDS = 600.0
"""A shorter soak says nothing about the process's memory: it is still warming up."""

WARM_UP, BEFORE, AFTER = 0.2, 0.4, 0.8
"""Shares of the run: memory between the first two is compared with that behind the third."""

BOUND_BYTES, BOUND_SHARE = 24 << 20, 0.02
"""By which it may have grown, the larger of the two: allocators and Python's free lists go on filling for a while."""

OF_REQUESTS = (Stream, AsyncStream, Ticket, Output, RequestState, ScheduledSequence)
"""What the engine makes for a request; when all requests are over, there is none."""


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def growth(samples: Sequence[tuple[float, int]]) -> tuple[int, int] | None:
    """Bytes before and after, as medians, from (seconds since the start, bytes); None of a run too short to tell."""
    seconds = samples[-1][0] if samples else 0.0
    if seconds < LEAST_SECONDS:
        return None
    before = [size for at, size in samples if WARM_UP * seconds <= at < BEFORE * seconds]
    after = [size for at, size in samples if at >= AFTER * seconds]
    return int(statistics.median(before)), int(statistics.median(after))


def bound(before: int) -> int:
    """How many bytes it may have grown by."""
    return max(BOUND_BYTES, int(BOUND_SHARE * before))


def of_requests() -> Counter[str]:
    """Objects of requests that are alive, by type."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in OF_REQUESTS)


# The run.


NUM_THREADS, NUM_TASKS = 8, 8
"""Together a few more than run and wait in the settings, so that now and then one is refused."""

LOOK_S, SAY_S = 0.5, 10.0


@dataclass(slots=True)
class Report:
    """What is printed at the end; `failures` are sentences, and without any it is `ok`."""

    seconds: float
    requests: int
    outcomes: dict[str, int]
    tokens: int
    tok_s: float
    preempted: int
    evicted_pages: int
    hit_rate: float
    longest_s: float
    rss_before_mb: float | None
    rss_after_mb: float | None
    replayed: dict[str, int]
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong."""
        return not self.failures


def soak(
    setting: Setting,
    *,
    seconds: float,
    seed: int,
    patience_s: float,
    most_calls: int | None = None,
    say: Callable[[str], object] = print,
) -> Report:
    """Run traffic for so long, or for so many calls; no request may take longer than `patience_s`."""
    alive = of_requests()
    traffic, ledger = Traffic(setting, seed, most_calls), Ledger(seed)
    began = time.monotonic()
    callers = _start_callers(setting.engine, traffic, ledger)
    samples = _watch(setting.engine, ledger, callers, began, seconds, patience_s, say)
    traffic.stop()
    _join(callers, ledger, patience_s)
    elapsed = time.monotonic() - began
    _judge_books(setting.engine, ledger)
    if left := of_requests() - alive:
        ledger.fail(f"objects of requests that are over are still alive: {dict(left)}")
    before_after = growth(samples)
    if before_after is not None and before_after[1] - before_after[0] > bound(before_after[0]):
        ledger.fail("memory grew from {} to {} bytes: more than the bound".format(*before_after))
    stats = setting.engine.stats()
    say(f"{elapsed:6.0f} s  all requests are over; {len(ledger.kept)} of them run again, alone")
    replayed = dict(replay(setting.engine, ledger.kept, ledger.fail)) if ledger.oldest() is None else {}
    return Report(
        seconds=round(elapsed, 1),
        requests=traffic.num_drawn,
        outcomes=dict(ledger.outcomes),
        tokens=ledger.num_tokens,
        tok_s=round(ledger.num_tokens / elapsed, 1),
        preempted=stats.scheduler.num_preempted,
        evicted_pages=stats.kv.num_evicted,
        hit_rate=round(stats.kv.hit_rate, 3),
        longest_s=round(ledger.longest_s, 2),
        rss_before_mb=round(before_after[0] / 1e6, 1) if before_after else None,
        rss_after_mb=round(before_after[1] / 1e6, 1) if before_after else None,
        replayed=replayed,
        failures=ledger.failures,
    )


def _start_callers(engine: Engine, traffic: Traffic, ledger: Ledger) -> list[threading.Thread]:
    async def in_loop() -> None:
        await asyncio.gather(*(call_from_loop(engine, traffic, ledger) for _ in range(NUM_TASKS)))

    def guarded(work: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 -- whatever ends a caller is a finding
                ledger.fail(f"a caller ended with {error!r}")
                traffic.stop()

        return run

    jobs: list[Callable[[], Any]] = [lambda: asyncio.run(in_loop())]
    jobs += [lambda: call_from_thread(engine, traffic, ledger)] * NUM_THREADS
    callers = [threading.Thread(target=guarded(job), daemon=True) for job in jobs]
    for caller in callers:
        caller.start()
    return callers


def _watch(
    engine: Engine,
    ledger: Ledger,
    callers: list[threading.Thread],
    began: float,
    seconds: float,
    patience_s: float,
    say: Callable[[str], object],
) -> list[tuple[float, int]]:
    """Look until the time is over, the callers are through, or something is wrong; returns memory over time."""
    samples: list[tuple[float, int]] = []
    next_say = SAY_S
    while (elapsed := time.monotonic() - began) < seconds and any(caller.is_alive() for caller in callers):
        samples.append((elapsed, resident_bytes()))
        if elapsed >= next_say:
            next_say += SAY_S
            say(_progress(engine, ledger, elapsed, samples[-1][1]))
        if _stuck(ledger, patience_s) or ledger.failures:
            break
        time.sleep(LOOK_S)
    return samples


def _stuck(ledger: Ledger, patience_s: float) -> bool:
    oldest = ledger.oldest()
    if oldest is None or oldest[0] <= patience_s:
        return False
    ledger.fail(f"stuck for {oldest[0]:.0f} s: {oldest[1]}"[:1000])
    return True


def _join(callers: list[threading.Thread], ledger: Ledger, patience_s: float) -> None:
    """All that is open ends by itself."""
    ends = time.monotonic() + patience_s
    for caller in callers:
        caller.join(max(0.0, ends - time.monotonic()))
    if any(caller.is_alive() for caller in callers):
        ledger.fail(f"callers still wait {patience_s:.0f} s after the last request: {ledger.oldest()}"[:1000])


def _judge_books(engine: Engine, ledger: Ledger) -> None:
    """Nothing is held when nobody asks any more, and the books add up."""
    try:
        engine.check_integrity()
        stats = engine.stats()
        held = (stats.scheduler.num_waiting, stats.scheduler.num_running, stats.kv.num_in_use)
        if any(held):
            ledger.fail(f"all requests are over, and still (waiting, running, pages in use) are {held}")
    except (AssertionError, EngineError) as error:
        ledger.fail(f"the books do not add up: {error!r}")


def _progress(engine: Engine, ledger: Ledger, elapsed: float, resident: int) -> str:
    stats = engine.stats()
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ledger.outcomes.items()))
    return (
        f"{elapsed:6.0f} s  {ledger.num_tokens} tokens, {outcomes}; {stats.scheduler.num_running} running, "
        f"{stats.scheduler.num_waiting} waiting, {stats.scheduler.num_preempted} preempted, "
        f"{stats.kv.num_evicted} pages evicted, hit rate {stats.kv.rolling_hit_rate:.0%}, {resident / 1e6:.0f} MB"
    )
