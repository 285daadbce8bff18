"""What every contestant is asked, and what it answers: requests that arrive, tokens with their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Speculation = Mapping[str, Any]
"""How a contestant is to draft: names and values that it knows; empty, a token a pass."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One greedy request for exactly `num_new` tokens.

    It is submitted once all requests of its job together have put out `after` tokens.
    """

    prompt_ids: tuple[int, ...]
    num_new: int
    after: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """Requests that run together, sorted by `after`; KV may be reused inside a job and never between two.

    A contestant that can keep them apart by a salt takes `salt`, which is another for every job; jobs that follow each
    other with the same salt count as one.
    """

    salt: str
    arrivals: tuple[Arrival, ...]
    speculation: Speculation = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form in which it travels."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Job:
        """Read `to_json`'s form."""
        arrivals = [Arrival(tuple(one["prompt_ids"]), one["num_new"], one["after"]) for one in raw["arrivals"]]
        return cls(raw["salt"], tuple(arrivals), raw["speculation"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of one arrival; `arrived` and the time of each token are in seconds since the job began."""

    arrived: float
    token_ids: tuple[int, ...]
    times: tuple[float, ...]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Answer:
        """Read what `asdict` wrote."""
        return cls(raw["arrived"], tuple(raw["token_ids"]), tuple(raw["times"]))


class Recorder:
    """Notes who arrived and which tokens came when; a contestant's loop calls it."""

    def __init__(self, job: Job, now: float) -> None:
        self._began = now
        self._waiting = list(enumerate(job.arrivals))
        self._arrived: dict[int, float] = {}
        self._token_ids: list[list[int]] = [[] for _ in job.arrivals]
        self._times: list[list[float]] = [[] for _ in job.arrivals]
        self._num_tokens = 0

    def due(self, now: float) -> list[tuple[int, Arrival]]:
        """The arrivals, with their numbers, that are to be submitted now; each is given once."""
        due: list[tuple[int, Arrival]] = []
        while self._waiting and self._waiting[0][1].after <= self._num_tokens:
            due.append(self._waiting.pop(0))
            self._arrived[due[-1][0]] = now - self._began
        return due

    def tokens(self, number: int, token_ids: Sequence[int], now: float) -> None:
        """Arrival `number` has put out these tokens."""
        self._token_ids[number] += token_ids
        self._times[number] += [now - self._began] * len(token_ids)
        self._num_tokens += len(token_ids)

    def answers(self) -> list[Answer]:
        """All that was noted, in the order of the job."""
        assert not self._waiting, f"{len(self._waiting)} requests never became due"
        return [
            Answer(self._arrived[number], tuple(ids), tuple(times))
            for number, (ids, times) in enumerate(zip(self._token_ids, self._times, strict=True))
        ]
