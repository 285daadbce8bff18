"""What is measured: jobs of real text, the standard library's, as token ids of the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from benchmarks.peers.jobs import Arrival, Job

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
        """The job for one of several runs, which share no KV."""
        return Job(f"{self.name}:{run}", self.arrivals)


class Text:
    """An endless stream of tokens, handed out in consecutive parts, so that no two prompts are alike."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = cycle(token_ids)

    def take(self, num_tokens: int) -> tuple[int, ...]:
        """The next tokens."""
        return tuple(next(self._token_ids) for _ in range(num_tokens))


def source_text(folder: Path = Path(os.__file__).parent) -> str:
    """The modules, one behind the other."""
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in MODULES)


def measures(text: Text) -> list[Measure]:
    """All jobs."""
    return [
        *(Measure(f"prefill {length}", (Arrival(text.take(length), 1),)) for length in PREFILL_LENGTHS),
        *(Measure(f"decode {size}", _together(text, size, DECODE_TOKENS)) for size in BATCH_SIZES),
        Measure("load", _load(text), frozenset({"arrivals"})),
        Measure("prefix", _shared_prefix(text), frozenset({"arrivals", "prefix"})),
    ]


def fitting(found: Sequence[Measure], context: int, skipped: Callable[[str], None]) -> list[Measure]:
    """Those whose requests fit a model's context; the others are named."""
    for measure in found:
        if measure.context > context:
            skipped(f"{measure.name}: {measure.context} tokens do not fit the model's {context}")
    return [measure for measure in found if measure.context <= context]


def _together(text: Text, num_requests: int, num_new: int) -> tuple[Arrival, ...]:
    return tuple(Arrival(text.take(DECODE_PROMPT), num_new) for _ in range(num_requests))


def _load(text: Text) -> tuple[Arrival, ...]:
    """Streams that decode, and requests that come one by one and want a single token."""
    late = (
        Arrival(text.take(LOAD_PROMPT), 1, after=LOAD_STREAMS * (LOAD_FIRST + number * LOAD_EVERY))
        for number in range(LOAD_ARRIVALS)
    )
    return (*_together(text, LOAD_STREAMS, LOAD_TOKENS), *late)


def _shared_prefix(text: Text) -> tuple[Arrival, ...]:
    """Two questions about one long text, the second when the first has its answer."""
    prefix = text.take(PREFIX_LEN)
    return Arrival(prefix + text.take(QUESTION_LEN), 1), Arrival(prefix + text.take(QUESTION_LEN), 1, after=1)
