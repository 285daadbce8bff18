"""Workload of the engine benchmark: jobs of real text as token ids, and the figures of their answers."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from benchmarks.peers.protocol import Answer, Arrival, Job

MODULES = ("argparse.py", "typing.py", "subprocess.py", "tarfile.py", "inspect.py", "doctest.py")
"""200,000 characters a few times over: more than the longest prompt needs, and the same on one Python version."""

PREFILL_LENGTHS = (512, 2048, 8192)
MIDDLE_LENGTH = 2048
"""The length whose figures are the summary's."""

BATCH_SIZES = (1, 4, 16)
DECODE_PROMPT, DECODE_TOKENS = 256, 64
LOAD_STREAMS, LOAD_TOKENS = 8, 160
LOAD_PROMPT, LOAD_ARRIVALS, LOAD_FIRST, LOAD_EVERY = 512, 5, 12, 26
"""The first comes when each stream has so many tokens, the next ones every so many tokens of a stream."""

PREFIX_LEN, QUESTION_LEN = 4000, 32
VERIFY_CONTEXT = 1024
VERIFY_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Measure:
    """A named job; a contestant needs `abilities` for it."""

    name: str
    arrivals: tuple[Arrival, ...]
    abilities: frozenset[str] = frozenset()

    @property
    def context(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return max(len(arrival.prompt_ids) + arrival.num_new for arrival in self.arrivals)

    def job(self, run: str) -> Job:
        """Return the job for one of several runs, which share no KV."""
        return Job(f"{self.name}:{run}", self.arrivals)


class Text:
    """An endless stream of tokens, handed out in consecutive parts, so that no two prompts are alike."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = cycle(token_ids)

    def take(self, num_tokens: int) -> tuple[int, ...]:
        return tuple(next(self._token_ids) for _ in range(num_tokens))


def read_source_text(folder: Path = Path(os.__file__).parent) -> str:
    """Return the modules, one after the other."""
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in MODULES)


def make_measures(text: Text) -> list[Measure]:
    return [
        *(Measure(f"prefill {length}", (Arrival(text.take(length), 1),)) for length in PREFILL_LENGTHS),
        *(Measure(f"decode {size}", _make_arrivals(text, size, DECODE_TOKENS)) for size in BATCH_SIZES),
        Measure("load", _make_load(text), frozenset({"arrivals"})),
        Measure("prefix", _make_shared_prefix(text), frozenset({"arrivals", "prefix"})),
    ]


def select_fitting(found: Sequence[Measure], context: int, skipped: Callable[[str], None]) -> list[Measure]:
    """Return those whose requests fit a model's context; the others are named."""
    for measure in found:
        if measure.context > context:
            skipped(f"{measure.name}: {measure.context} tokens do not fit the model's {context}")
    return [measure for measure in found if measure.context <= context]


def _make_arrivals(text: Text, num_requests: int, num_new: int) -> tuple[Arrival, ...]:
    return tuple(Arrival(text.take(DECODE_PROMPT), num_new) for _ in range(num_requests))


def _make_load(text: Text) -> tuple[Arrival, ...]:
    """Streams that decode, and requests that come one by one and want a single token."""
    late = (
        Arrival(text.take(LOAD_PROMPT), 1, after=LOAD_STREAMS * (LOAD_FIRST + number * LOAD_EVERY))
        for number in range(LOAD_ARRIVALS)
    )
    return (*_make_arrivals(text, LOAD_STREAMS, LOAD_TOKENS), *late)


def _make_shared_prefix(text: Text) -> tuple[Arrival, ...]:
    """Return two questions about one long text, the second when the first has its answer."""
    prefix = text.take(PREFIX_LEN)
    return Arrival(prefix + text.take(QUESTION_LEN), 1), Arrival(prefix + text.take(QUESTION_LEN), 1, after=1)


Figures = dict[str, float]
"""Names of figures, as they stand in the report, and their values."""

RATE, OF_ITS_OWN = "_tok_s", ("_share", "_ratio_16")
"""How names of rates end, of which more is better, and names of what compares a contestant with itself or with the
machine; of all other figures less is better."""


def compute_figures(measure: str, answers: Sequence[Answer]) -> Figures:
    """Return what one run of a measure says."""
    kind, _, size = measure.partition(" ")
    if kind == "prefill":
        return {f"prefill_{size}_tok_s": int(size) / compute_ttft(answers[0])}
    if kind == "decode":
        return {
            f"decode_{size}_tok_s": compute_decode_rate(answers),
            f"throughput_{size}_tok_s": compute_throughput(answers),
        }
    if kind == "load":
        streams, late = answers[:LOAD_STREAMS], answers[LOAD_STREAMS:]
        waits = [compute_ttft(answer) for answer in late]
        return {
            "load_ttft_p50_ms": 1e3 * statistics.median(waits),
            "load_ttft_max_ms": 1e3 * max(waits),
            "load_gap_p50_ms": 1e3 * statistics.median(list_gaps(streams, late[0].arrived)),
            "load_gap_max_ms": 1e3 * max(list_gaps(streams, late[0].arrived)),
        }
    assert kind == "prefix", measure
    cold, cached = (compute_ttft(answer) for answer in answers)
    return {"prefix_cold_ms": 1e3 * cold, "prefix_cached_ms": 1e3 * cached, "prefix_cached_share": cached / cold}


def compute_ttft(answer: Answer) -> float:
    """Return seconds from submission to the first token."""
    return answer.times[0] - answer.arrived


def compute_decode_rate(answers: Sequence[Answer]) -> float:
    """Return tokens a second of all together, while all decode: from the last one's first token to the first one's end.

    Where they never all do, because the contestant takes them one by one, it is the throughput.
    """
    start = max(answer.times[0] for answer in answers)
    end = min(answer.times[-1] for answer in answers)
    if end <= start:
        return compute_throughput(answers)
    return sum(start < at <= end for answer in answers for at in answer.times) / (end - start)


def compute_throughput(answers: Sequence[Answer]) -> float:
    """Return output tokens a second from the first submission to the last token, the prompts' prefill included."""
    seconds = max(answer.times[-1] for answer in answers) - min(answer.arrived for answer in answers)
    return sum(len(answer.times) for answer in answers) / seconds


def list_gaps(streams: Sequence[Answer], since: float) -> list[float]:
    """Return seconds between neighbouring tokens of each stream, of those that come after `since`."""
    return [
        later - earlier
        for stream in streams
        for earlier, later in zip(stream.times, stream.times[1:], strict=False)
        if later > since
    ]


def compute_advantage(name: str, ours: float, theirs: float) -> float | None:
    """Return how many times better ours is: above 1, ours is ahead. None of figures that are not compared."""
    if name.endswith(OF_ITS_OWN):
        return None
    return ours / theirs if name.endswith(RATE) else theirs / ours
