"""Indexing a folder: cold beside the tokenizer alone, warm from the store, and the memory that it takes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer

from repo_cache.cache import RepoCache
from repo_cache.tokenizer import BPETokenizer

CEILING_BATCH = 1024
"""Texts of a call of `encode_batch`: enough for all cores, and few enough for the memory that its answers take."""

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Indexing:
    """What was measured of a folder, a value of each round; seconds."""

    paths: tuple[str, ...] = ()
    num_bytes: int = 0
    num_tokens: int = 0
    cold: list[float] = field(default_factory=list)
    ceiling: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    warm_encoded: int = 0
    spans: float = 0.0
    rescan: list[float] = field(default_factory=list)
    mb_a_million_tokens: float = 0.0

    @property
    def num_files(self) -> int:
        """That are text, and not ignored."""
        return len(self.paths)

    @property
    def ceiling_share(self) -> float:
        """Of what the tokenizer alone does with the same text in a second: the median of the rounds' ratios."""
        return median(alone / ours for alone, ours in zip(self.ceiling, self.cold, strict=True))


def measure_indexing(
    folder: Path, tokenizer_file: Path, store: Path, rounds: int, say: Callable[[str], None]
) -> Indexing:
    """Index a folder in turns with the plain tokenizer, which is given the same texts in memory."""
    found = Indexing()
    for number in range(rounds):
        for turn in (_cold, _ceiling) if number % 2 == 0 else (_ceiling, _cold):
            turn(folder, tokenizer_file, found)
        say(f"round {number + 1}: cold {found.cold[-1]:.2f} s, encode_batch alone {found.ceiling[-1]:.2f} s")
    _warm(folder, tokenizer_file, store, rounds, found)
    say(f"warm {median(found.warm):.2f} s")
    found.mb_a_million_tokens = _memory(folder, tokenizer_file)
    return found


def _cold(folder: Path, tokenizer_file: Path, found: Indexing) -> None:
    tokenizer = BPETokenizer.from_file(tokenizer_file)  # anew: it remembers words
    started = time.perf_counter()
    with RepoCache.open(folder, tokenizer, watch=False) as cache:
        found.cold.append(time.perf_counter() - started)
        snapshot = cache.snapshot()
        found.paths, found.num_tokens = tuple(snapshot), snapshot.num_tokens
        if not found.spans:
            started = time.perf_counter()
            for tokens in snapshot.values():
                assert tokens.spans is not None
            found.spans = time.perf_counter() - started


def _ceiling(folder: Path, tokenizer_file: Path, found: Indexing) -> None:
    """The texts that the index has lie in memory before the clock starts, and what comes out is dropped."""
    texts = [(folder / path).read_bytes().decode() for path in found.paths]
    found.num_bytes = sum(len(text.encode()) for text in texts)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.encode_special_tokens = True
    started = time.perf_counter()
    for first in range(0, len(texts), CEILING_BATCH):
        tokenizer.encode_batch(texts[first : first + CEILING_BATCH], add_special_tokens=False)
    found.ceiling.append(time.perf_counter() - started)


def _warm(folder: Path, tokenizer_file: Path, store: Path, rounds: int, found: Indexing) -> None:
    tokenizer = BPETokenizer.from_file(tokenizer_file)
    RepoCache.open(folder, tokenizer, watch=False, store=store).close()
    time.sleep(0.1)
    RepoCache.open(folder, tokenizer, watch=False, store=store).close()  # stats that were too young count from here on
    for _ in range(rounds):
        tokenizer = BPETokenizer.from_file(tokenizer_file)
        started = time.perf_counter()
        with RepoCache.open(folder, tokenizer, watch=False, store=store) as cache:
            found.warm.append(time.perf_counter() - started)
            assert len(cache.snapshot()) == found.num_files
            started = time.perf_counter()
            cache.refresh()
            found.rescan.append(time.perf_counter() - started)


def _memory(folder: Path, tokenizer_file: Path) -> float:
    """Megabytes that a process has more behind indexing than before, for a million tokens."""
    command = [sys.executable, "-m", "benchmarks.watch.memory", str(folder), str(tokenizer_file)]
    ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    told = json.loads(ran.stdout)
    return float(told["grown_mb"]) / (float(told["num_tokens"]) / 1e6)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
