"""Runs clients against a service, each kind in a process of its own, and sums up what they saw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Literal

from benchmarks.serve.edits import Edit
from benchmarks.serve.service import Running

Kind = Literal["steady", "slow", "leaving"]


@dataclass(frozen=True, slots=True)
class Clients:
    """So many of one kind, with the edits that they send; without edits they ask whether the service lives."""

    name: str
    edits: Sequence[Edit]
    count: int
    kind: Kind = "steady"
    token: str = ""
    pause_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw; latencies in milliseconds, sorted."""

    latencies_ms: tuple[float, ...]
    statuses: Counter[str]
    faults: Counter[str]
    wrong: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return len(self.latencies_ms) / self.seconds

    def quantile_ms(self, share: float) -> float:
        """A latency that so many stay below."""
        cuts = quantiles(self.latencies_ms, n=1000, method="inclusive")
        return cuts[min(998, round(share * 1000) - 1)]

    @property
    def num_errors(self) -> int:
        """Answers that are neither a result nor 429, connections that failed, and files that came out wrong."""
        good = sum(count for status, count in self.statuses.items() if status in ("200", "429"))
        return sum(self.statuses.values()) - good + sum(self.faults.values()) + self.wrong


def run(service: Running, clients: Sequence[Clients], seconds: float, folder: Path) -> dict[str, Seen]:
    """All of them at once."""
    processes = {}
    for each in clients:
        file = folder / f"{each.name}.jsonl".replace(" ", "-")
        rows = [json.dumps({"body": edit.body(), "sha256": edit.sha256}) for edit in each.edits]
        rows = rows or [json.dumps({"body": "", "sha256": ""})]
        file.write_text("\n".join(rows), encoding="utf-8")
        command: list[str | Path] = [sys.executable, "-m", "benchmarks.serve.client", str(service.port), file]
        command += ["--clients", str(each.count), "--seconds", str(seconds), "--kind", each.kind]
        command += ["--token", each.token, "--pause-ms", str(each.pause_ms)]
        processes[each.name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return {name: _seen(process.communicate()[0]) for name, process in processes.items()}


def _seen(printed: str) -> Seen:
    tally = json.loads(printed)
    counts = (Counter(tally["statuses"]), Counter(tally["faults"]))
    return Seen(tuple(sorted(tally["latencies_ms"])), *counts, tally["wrong"], tally["seconds"])


def watch_memory(service: Running, seconds: float, every_s: float) -> list[tuple[float, float]]:
    """(seconds, MB) of the service while something else loads it."""
    started, found = time.monotonic(), []
    while (passed := time.monotonic() - started) < seconds:
        found.append((round(passed, 1), service.resident_mb))
        time.sleep(every_s)
    return found
