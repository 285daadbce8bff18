"""Write repositories of real sources, and time indexing them."""

from __future__ import annotations

import json
import os
import random
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer

from repo_cache.cache import RepoCache
from repo_cache.tokenizer import BPETokenizer

SUFFIXES = (".py", ".pyi", ".c", ".h", ".cpp", ".js", ".ts", ".css", ".html", ".json", ".md", ".rst", ".toml", ".yaml")
LARGEST = 100_000
"""Bytes of a file that is taken: longer ones are tables more often than not."""

FILES_A_FOLDER = 40


@dataclass(frozen=True, slots=True)
class Sources:
    """The text files of the standard library and of the installed packages, in a seeded order."""

    paths: tuple[Path, ...]

    @classmethod
    def find_sources(cls, seed: int) -> Sources:
        """Return all there are; raises ValueError where there are none."""
        paths = list(_find_files())
        if not paths:
            raise ValueError("no sources were found in the standard library or the installed packages")
        random.Random(seed).shuffle(paths)
        return cls(tuple(paths))

    def texts(self, count: int, seed: int) -> Iterator[tuple[str, str]]:
        """`count` different texts, each with the suffix of its file.

        They are the files as they are, and when there are no more, parts of them: from a line to another, drawn by the
        seed, below a first line that makes it different.
        """
        drawn = random.Random(seed)
        files = [(path.suffix, text) for path in self.paths[:count] if (text := _read_text(path))]
        yield from files
        for number in range(len(files), count):
            suffix, text = files[number % len(files)]
            lines = text.splitlines(keepends=True)
            first = drawn.randrange(max(1, len(lines) // 2))
            yield suffix, f"# part {number}\n" + "".join(lines[first : first + drawn.randint(20, 600)])

    def long_text(self, num_lines: int) -> str:
        """Return Python sources one after the other, cut to so many lines."""
        lines: list[str] = []
        for path in self.paths:
            if path.suffix == ".py" and len(lines) < num_lines:
                lines += (_read_text(path) or "").splitlines(keepends=True)
        return "".join(lines[:num_lines])


def write_repository(folder: Path, texts: Sequence[tuple[str, str]]) -> None:
    """Write the texts below a folder, in folders of folders."""
    for number, (suffix, text) in enumerate(texts):
        place, file = divmod(number, FILES_A_FOLDER)
        path = folder / f"part_{place // FILES_A_FOLDER}" / f"package_{place}" / f"file_{file}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def run_git(folder: Path, *arguments: str) -> None:
    """Run git there, without the settings of whoever runs this."""
    identity = ["-c", "user.name=hunk", "-c", "user.email=hunk@localhost", "-c", "gc.auto=0"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@cache
def _find_files() -> tuple[Path, ...]:
    roots = {Path(sysconfig.get_path("stdlib")), *map(Path, site.getsitepackages())}
    found: dict[tuple[str, int], Path] = {}
    for root in sorted(roots):
        for folder, folders, names in os.walk(root):  # a quarter of the time of `rglob`
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in SUFFIXES and path.is_file() and 0 < (size := path.stat().st_size) <= LARGEST:
                    found.setdefault((name, size), path)  # packages vendor one another
    return tuple(found.values())


def _read_text(path: Path) -> str | None:
    """Return the text of a file; None where it is none."""
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


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
        for turn in (_measure_cold, _measure_ceiling) if number % 2 == 0 else (_measure_ceiling, _measure_cold):
            turn(folder, tokenizer_file, found)
        say(f"round {number + 1}: cold {found.cold[-1]:.2f} s, encode_batch alone {found.ceiling[-1]:.2f} s")
    _measure_warm(folder, tokenizer_file, store, rounds, found)
    say(f"warm {median(found.warm):.2f} s")
    found.mb_a_million_tokens = _measure_memory(folder, tokenizer_file)
    return found


def _measure_cold(folder: Path, tokenizer_file: Path, found: Indexing) -> None:
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


def _measure_ceiling(folder: Path, tokenizer_file: Path, found: Indexing) -> None:
    """The texts that the index has lie in memory before the clock starts, and what comes out is dropped."""
    texts = [(folder / path).read_bytes().decode() for path in found.paths]
    found.num_bytes = sum(len(text.encode()) for text in texts)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.encode_special_tokens = True
    started = time.perf_counter()
    for first in range(0, len(texts), CEILING_BATCH):
        tokenizer.encode_batch(texts[first : first + CEILING_BATCH], add_special_tokens=False)
    found.ceiling.append(time.perf_counter() - started)


def _measure_warm(folder: Path, tokenizer_file: Path, store: Path, rounds: int, found: Indexing) -> None:
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


def _measure_memory(folder: Path, tokenizer_file: Path) -> float:
    """Return megabytes that a process has more after indexing than before, for a million tokens."""
    command = [sys.executable, "-m", "benchmarks.watch.memory", str(folder), str(tokenizer_file)]
    ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    told = json.loads(ran.stdout)
    return float(told["grown_mb"]) / (float(told["num_tokens"]) / 1e6)
