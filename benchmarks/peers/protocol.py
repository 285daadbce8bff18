"""The protocol of contestants: jobs and answers as lines of JSON between two processes.

Peers run this module in environments of their own, so it imports the standard library only."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

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
        """Return the form in which it travels."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Job:
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
        """Return the arrivals, with their numbers, that are to be submitted now; each is given once."""
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
        """Return all that was noted, in the order of the job."""
        assert not self._waiting, f"{len(self._waiting)} requests never became due"
        return [
            Answer(self._arrived[number], tuple(ids), tuple(times))
            for number, (ids, times) in enumerate(zip(self._token_ids, self._times, strict=True))
        ]


def parse_flags(description: str | None) -> argparse.Namespace:
    """Parse the flags that every contestant is started with."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="what this contestant loads: a name, a folder or a .gguf file")
    parser.add_argument("--context", type=int, required=True, help="tokens of prompt and answer")
    parser.add_argument("--quantize", default="none", help="how ours stores its weights")
    parser.add_argument("--speculation", action="store_true", help="jobs say how to draft")
    return parser.parse_args()


def take_stdout() -> TextIO:
    """Return the real standard output; from now on, what libraries print there goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def serve(channel: TextIO, operations: Mapping[str, Callable[[Any], Any]], hello: Mapping[str, Any]) -> None:
    """Answer until standard input ends; an error ends the process, its traceback on standard error."""
    _send(channel, hello)
    for line in sys.stdin:
        asked = json.loads(line)
        _send(channel, operations[asked["operation"]](asked["argument"]))


def peak_bytes(_: object = None) -> int:
    """Return the most memory that this process has had resident."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _send(channel: TextIO, value: Any) -> None:
    channel.write(json.dumps(value) + "\n")
    channel.flush()


SECONDS_TO_LEAVE = 20
LINES_SHOWN = 30


class ContestantFailed(Exception):
    """The process ended, or never became ready; the message has its last words."""


class Contestant:
    """A process that says what it can do when it is ready, and then does what it is asked, one thing at a time.

    `abilities`: `arrivals`, requests may join while others run; `prefix`, the KV of an earlier prompt is reused.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        # Open as long as the process.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            hello = self._read()
        except ContestantFailed:
            self.close()
            raise
        self.version: str = hello["version"]
        self.abilities = frozenset(hello["abilities"])

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, operation: str, argument: Any = None) -> Any:
        """Have it do something; raises ContestantFailed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is nothing to read, and the error has its last words
            self._process.stdin.write(json.dumps({"operation": operation, "argument": argument}) + "\n")
            self._process.stdin.flush()
        return self._read()

    def run(self, job: Job) -> list[Answer]:
        return [Answer.from_json(answer) for answer in self.ask("run", job.to_json())]

    def close(self) -> None:
        """End the process; again does nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().rstrip()
        lines = said.splitlines()
        trace = said[said.rfind("Traceback") :].splitlines() if "Traceback" in said else []
        words = "\n".join(trace[:LINES_SHOWN] or lines[-LINES_SHOWN:])
        raise ContestantFailed(f"{self.name} ended with status {self._process.returncode}:\n{words}")
