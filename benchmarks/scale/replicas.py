"""Sessions of agents on local replicas: how much of their prompts is found, and when the first token comes."""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from agent_runtime.cluster.config import ReplicaConfig
from agent_runtime.cluster.ray_cluster import open_local
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ChatRequest, EncodedPrompt
from agent_runtime.models.config import LoadOptions, MergeOptions, ModelSettings
from agent_runtime.request_context import FirstTokenTimer, RequestContext
from benchmarks.cases import read_records
from benchmarks.harness import say
from benchmarks.snippets import Pair
from repo_cache.tokenizer import BPETokenizer

if TYPE_CHECKING:  # imports Ray, which `open_local` has to configure before
    from agent_runtime.cluster.client import ReplicatedMerger

Route = Literal["any", "session"]
ROUTES: tuple[Route, ...] = ("any", "session")
"""`any`: each request has a key of its own. `session`: the session's."""

MOST_CHARACTERS = 20_000
"""Characters of a file; longer ones are left out."""

ANSWER_TOKENS = 8
PREAMBLE = "You are an agent that edits the files below. Answer briefly.\n"


@dataclass(slots=True)
class Session:
    """A session: the tokens of its prompt so far, and those that its turns add."""

    name: str
    prompt: list[int]
    turns: list[list[int]]
    num_shared: int = 0
    seconds: list[float] = field(default_factory=list)


def measure_replicas(options: argparse.Namespace, num_replicas: int, route: Route) -> Iterator[dict[str, Any]]:
    """Yield one row: hits as a share of those of one cache that holds everything, and times to the first token."""
    say(f"{num_replicas} replicas, route by {route}")
    context = options.session_tokens + 400 * options.turns + 1024
    bytes_a_token = 57.4e3  # a 7B's, the most of the catalogue
    kv_gib = options.sessions * context * bytes_a_token / 2**30
    config = ReplicaConfig(
        options.model,
        ModelSettings.from_env(os.environ),
        LoadOptions(context=context, kv_gib=min(kv_gib, 4.0)),
        MergeOptions(),
        num_replicas=num_replicas,
    )
    merger = open_local(config)
    try:
        pairs = [
            Pair(record["commit"], record["path"], record["original"], record["expected"])
            for _, records in read_records(options.cases)
            for record in records
            if len(record["original"]) < MOST_CHARACTERS
        ]
        sessions = make_sessions(pairs, options, merger.description.text.tokenizer)
        row = _run(merger, sessions, route, num_replicas)
    finally:
        merger.close()
    yield {"part": "replicas", "replicas": num_replicas, "route": route, **row}


def make_sessions(pairs: Sequence[Pair], options: argparse.Namespace, tokenizer: BPETokenizer) -> list[Session]:
    """Deal the files of real commits to sessions, each its own; a turn shows the change of one more file."""
    left, sessions = iter(random.Random(options.seed).sample(pairs, len(pairs))), []
    for number in range(options.sessions):
        prompt = tokenizer.encode(PREAMBLE)
        num_shared = len(prompt)
        while len(prompt) < options.session_tokens:
            pair = next(left)
            prompt += tokenizer.encode(f"{pair.path}\n{pair.before}\n")
        turns = [tokenizer.encode(f"Next: {next(left).after}\n")[:400] for _ in range(options.turns)]
        sessions.append(Session(f"s{number}", prompt[: options.session_tokens], turns, num_shared))
    return sessions


def _run(merger: ReplicatedMerger, sessions: list[Session], route: Route, num_replicas: int) -> dict[str, Any]:
    """Run the turns of all sessions, as many sessions at a time as there are replicas."""
    numbers, counts = count(), {"cached": 0, "prompt": 0, "best": 0, "lost": 0}

    def run(session: Session) -> None:
        for number, turn in enumerate(session.turns):
            known = len(session.prompt) - 1 if number else session.num_shared
            session.prompt += turn
            key = session.name if route == "session" else f"request {next(numbers)}"
            request = ChatRequest(prompt=EncodedPrompt(tuple(session.prompt)), max_tokens=ANSWER_TOKENS)
            timer, started = FirstTokenTimer(), time.perf_counter()
            try:
                answer = merger.chat().answer(request, RequestContext(affinity=key), timer)
            except HunkError as fault:
                say(f"  lost: {fault}")
                counts["lost"] += 1
                continue
            session.seconds.append((timer.first_token_ms or 0.0) / 1e3 or time.perf_counter() - started)
            counts["cached"] += answer.usage.cached
            counts["prompt"] += answer.usage.prompt
            counts["best"] += known
            found = f"{answer.usage.cached} of {answer.usage.prompt} tokens"
            say(f"  {session.name}.{number}: {session.seconds[-1]:.2f} s, found {found}")

    with ThreadPoolExecutor(num_replicas) as threads:
        list(threads.map(run, sessions))
    first = sessions[0]
    request = ChatRequest(prompt=EncodedPrompt(tuple(first.prompt)), max_tokens=1, salt="another tenant")
    foreign = merger.chat().answer(request, RequestContext(affinity=first.name), FirstTokenTimer()).usage.cached
    seconds = sorted(each for session in sessions for each in session.seconds)
    return {
        "hit_share": round(counts["cached"] / counts["best"], 4) if counts["best"] else None,
        "computed": counts["prompt"] - counts["cached"],
        "ttft_p50": round(seconds[len(seconds) // 2], 3) if seconds else None,
        "ttft_p90": round(seconds[int(0.9 * (len(seconds) - 1))], 3) if seconds else None,
        "lost": counts["lost"],
        "foreign": foreign,
    }
