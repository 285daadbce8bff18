"""A running `hunk serve`, edits whose merges are known, and clients that send them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from types import MappingProxyType
from typing import IO, Literal

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError
from agent_runtime.types import ApplyRequest, Mode
from benchmarks.edit_formats import render_lazy, render_search_replace, render_udiff
from benchmarks.harness import refuse_model

NUM_LINES = 100


@dataclass(frozen=True, slots=True)
class Edit:
    """A file, an edit of it, and the hash of what comes out; "" where a model decides that."""

    original: str
    text: str
    path: str
    sha256: str = ""
    mode: Mode = "deterministic"
    max_tokens: int | None = None

    def request(self) -> ApplyRequest:
        return ApplyRequest(self.original.encode(), self.text, self.path, mode=self.mode)

    def body(self) -> str:
        fields = {"original": self.original, "edit": self.text, "path": self.path, "mode": self.mode}
        return json.dumps(fields | ({} if self.max_tokens is None else {"max_tokens": self.max_tokens}))


def make_rule_edits(count: int, seed: int) -> list[Edit]:
    """So many edits that rules merge for certain, with what comes out of them in this process."""
    found: list[Edit] = []
    for edit in _draw_candidates(random.Random(seed)):
        try:
            merged = make_applier().apply(edit.request())
        except HunkError:
            continue
        if merged.status == "merged" and merged.file.confidence is None:  # no reading: by a rule
            found.append(Edit(edit.original, edit.text, edit.path, merged.file.sha256_after))
        if len(found) == count:
            break
    return found


def make_model_edits(by_rule: list[Edit], max_tokens: int = 32) -> list[Edit]:
    """Return the same edits for the model, which is stopped soon: the load is its passes, not its answers."""
    return [Edit(edit.original, edit.text, edit.path, mode="model", max_tokens=max_tokens) for edit in by_rule]


def make_applier() -> Applier:
    """Return the pipeline in this process, without a model."""
    return Applier(refuse_model)


def _draw_candidates(rng: random.Random) -> Iterator[Edit]:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    while True:
        file = rng.choice(files)
        lines = file.read_text(encoding="utf-8").split("\n")
        if len(lines) <= NUM_LINES:
            continue
        start = rng.randrange(len(lines) - NUM_LINES)
        before = lines[start : start + NUM_LINES]
        at = rng.randrange(10, NUM_LINES - 10)
        if not before[at].strip() or before[at].rstrip().endswith(("\\", '"""')):
            continue
        after = [*before[:at], before[at] + "  # changed", *before[at + 1 :]]
        old, new = "\n".join(before) + "\n", "\n".join(after) + "\n"
        written = (
            render_search_replace(old, new),
            render_udiff(old, new, file.name),
            render_lazy(old, new, "# ... existing code ..."),
        )
        text = rng.choice(written)
        if text:
            yield Edit(old, text, file.name)


HUNK = Path(sys.executable).with_name("hunk")


@dataclass(frozen=True, slots=True)
class Running:
    """A running service."""

    port: int
    pid: int

    @property
    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def num_threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    @property
    def num_open_files(self) -> int:
        """Its open files and connections now."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def open_service(
    model: str | Path, root: Path, *options: str | Path, environ: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Running]:
    """A service with its model loaded, ended by SIGTERM; raises RuntimeError where it does not start or end well.

    It may be killed meanwhile. `options` and `environ` come on top of the usual ones.
    """
    command: list[str | Path] = [HUNK, "serve", "--port", "0", "--model", model, "--root", root, "--log-format", "json"]
    command += options
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ | environ
    ) as process:
        assert process.stderr is not None
        said: list[str] = []
        port = 0
        while not port and (line := process.stderr.readline()):
            said.append(line.rstrip())
            found = re.search(r"listening on \S+:(\d+),", line)
            port = int(found[1]) if found else 0
        if not port:
            raise RuntimeError("\n".join(["the service did not start", *said]))
        threading.Thread(target=_keep, args=(process.stderr, said), daemon=True).start()
        try:
            _wait_until_ready(port, process)
            yield Running(port, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError("the service ended with " + "\n".join([str(code), *said[-10:]]))


def _keep(lines: IO[str], said: list[str]) -> None:
    for line in lines:
        said.append(line.rstrip())
        del said[:-20]


def _wait_until_ready(port: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30):
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise RuntimeError(f"the service ended with {process.returncode} while its model was loaded")


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
    def requests_s(self) -> float:
        return len(self.latencies_ms) / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Return a latency that so many stay below."""
        cuts = quantiles(self.latencies_ms, n=1000, method="inclusive")
        return cuts[min(998, round(share * 1000) - 1)]

    @property
    def num_errors(self) -> int:
        """Answers that are neither a result nor 429, connections that failed, and files that came out wrong."""
        good = sum(count for status, count in self.statuses.items() if status in ("200", "429"))
        return sum(self.statuses.values()) - good + sum(self.faults.values()) + self.wrong


def run_clients(service: Running, clients: Sequence[Clients], seconds: float, folder: Path) -> dict[str, Seen]:
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
    return {name: _read_seen(process.communicate()[0]) for name, process in processes.items()}


def _read_seen(printed: str) -> Seen:
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
