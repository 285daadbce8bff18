"""A cache watches a folder that another process changes at random, and is compared with a fresh cache now and then."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from repo_cache.cache import RepoCache
from repo_cache.snapshot import Changes, Snapshot
from repo_cache.tokenizer import BPETokenizer

CHECKOUT = Path(__file__).resolve().parents[2]
MOST_NAMED = 10


@dataclass(slots=True)
class Report:
    """What happened. `longest_wait_s`: from the end of a round until the snapshot was the one from scratch."""

    rounds: int = 0
    operations: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    files: int = 0
    versions: int = 0
    longest_wait_s: float = 0.0
    notices: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.failures


def run_chaos(
    folder: Path,
    tokenizer: BPETokenizer,
    *,
    seed: int,
    operations: int,
    seconds: float,
    a_round: int,
    patience_s: float,
    polling: bool | None,
    say: Callable[[str], None],
) -> Report:
    """Rounds of `a_round` operations until there were `operations` or `seconds` are over; each ends with a comparison.

    No refresh and no periodic scan helps the cache: what it knows, it knows from events (or from polling).
    """
    report = Report()
    _initialise(folder)
    until = time.monotonic() + seconds
    with RepoCache.open(folder, tokenizer, polling=polling, rescan_seconds=0) as cache, _disorder(folder, seed) as mess:
        told = dict(_hashes(cache.snapshot()))
        with cache.subscribe() as subscription:
            while report.operations < operations and time.monotonic() < until and report.ok:
                report.counts = mess(a_round)
                report.rounds += 1
                report.operations += a_round
                _compare(folder, tokenizer, cache, patience_s, report)
                while (update := subscription.get(0)) is not None:
                    _follow(told, update.changes)
                if told != _hashes(cache.snapshot()):
                    report.failures.append("the updates of a subscription do not add up to the snapshot")
                say(f"{report.operations} operations, {report.files} files, version {report.versions}")
        report.notices = [notice.message for notice in cache.notices]
    return report


def _initialise(folder: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--initial-branch=branch-0"], cwd=folder, check=True)
    (folder / "first.py").write_text("first = 1\n", encoding="utf-8")


@contextmanager
def _disorder(folder: Path, seed: int) -> Iterator[Callable[[int], dict[str, int]]]:
    command = [sys.executable, "-m", "tests.chaos.disorder", str(folder), str(seed)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(count: int) -> dict[str, int]:
            stdin.write(f"{count}\n")
            stdin.flush()
            answer: dict[str, int] = json.loads(stdout.readline())
            return answer

        yield ask


def _compare(folder: Path, tokenizer: BPETokenizer, cache: RepoCache, patience_s: float, report: Report) -> None:
    """Wait until the cache says what a fresh one does, which nothing but the watcher can bring about."""
    started = time.monotonic()
    with RepoCache.open(folder, tokenizer, watch=False) as fresh:
        right = fresh.snapshot()
    while (known := cache.snapshot()) != right and time.monotonic() - started < patience_s:
        time.sleep(0.02)
    report.files, report.versions = len(known), known.version
    report.longest_wait_s = max(report.longest_wait_s, time.monotonic() - started)
    if known != right:
        report.failures += _differences(known, right)


def _differences(known: Snapshot, right: Snapshot) -> list[str]:
    found = [f"{path}: not known" for path in right if path not in known]
    found += [f"{path}: known, and not there" for path in known if path not in right]
    found += [f"{path}: not as it is" for path in right if path in known and known[path] != right[path]]
    found += [
        f"skipped: {known.skipped.get(path)} for {right.skipped.get(path)}: {path}" for path in _skipped(known, right)
    ]
    return found[:MOST_NAMED]


def _skipped(known: Snapshot, right: Snapshot) -> list[str]:
    both = {*known.skipped, *right.skipped}
    return sorted(path for path in both if known.skipped.get(path) != right.skipped.get(path))


def _hashes(snapshot: Snapshot) -> dict[str, str]:
    return {path: tokens.content_hash for path, tokens in snapshot.items()}


def _follow(told: dict[str, str], changes: Changes) -> None:
    """What a subscriber that keeps its own books makes of an update."""
    for change in changes:
        if change.kind == "removed":
            del told[change.path]
        if change.old_path is not None:
            del told[change.old_path]
    told.update({change.path: change.after.content_hash for change in changes if change.after is not None})
