"""Time one-line edits from the written file to the snapshot, and what the watcher adds."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer

from benchmarks.watch.indexing import Sources, run_git, write_repository
from repo_cache.cache import RepoCache
from repo_cache.tokenizer import BPETokenizer

DEBOUNCE_SECONDS = 0.05
PATIENCE_SECONDS = 30.0
SWITCH_PARTS = 4
"""Lines of a file that differ between the branches: one in so many places."""


@dataclass(slots=True)
class Edits:
    """Edits of one line in a file of so many lines, in seconds.

    `refreshed`: from the call that says which file changed to the snapshot that has its tokens and its spans.
    `whole`: the plain tokenizer with all of the text. `encoded`: tokens that were encoded anew.
    """

    num_lines: int
    num_tokens: int = 0
    refreshed: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """How many times quicker than encoding the file whole."""
        return median(self.whole) / median(self.refreshed)


@dataclass(slots=True)
class Watching:
    """What goes through the watcher. `delays`: seconds from the end of a write to the update, the debounce taken off.

    `switch_seconds`: from the end of a `git checkout` to the snapshot with all of its `switch_files` files.
    """

    delays: list[float] = field(default_factory=list)
    switch_files: int = 0
    switch_seconds: list[float] = field(default_factory=list)
    checkout_seconds: list[float] = field(default_factory=list)


def measure_edits(folder: Path, sources: Sources, tokenizer_file: Path, num_lines: int, count: int, seed: int) -> Edits:
    """Edit a line of a file of so many lines, `count` times, and look at that file."""
    folder.mkdir()
    path = folder / "long.py"
    lines = sources.long_text(num_lines).splitlines(keepends=True)
    path.write_text("".join(lines), encoding="utf-8", newline="")
    plain = Tokenizer.from_file(str(tokenizer_file))
    plain.encode_special_tokens = True
    drawn, found = random.Random(seed), Edits(num_lines)
    with RepoCache.open(folder, BPETokenizer.from_file(tokenizer_file), watch=False) as cache:
        for number in range(count + 1):
            at = drawn.randrange(len(lines))
            lines[at] = f"    value_{number} = compute({drawn.randrange(10**6)}, 'edited')\n"
            text = "".join(lines)
            path.write_text(text, encoding="utf-8", newline="")
            subscription = cache.subscribe()
            started = time.perf_counter()
            tokens = cache.refresh(["long.py"])["long.py"]
            num_spans = len(tokens.spans)
            seconds = time.perf_counter() - started
            assert num_spans
            update = subscription.get(0)
            assert update is not None, "the edit was not seen"
            subscription.close()
            if number:  # the first one finds nothing kept of the file but its ids
                found.refreshed.append(seconds)
                found.encoded.append(update.num_encoded)
            if number % max(1, count // 5) == 0:
                started = time.perf_counter()
                encoding = plain.encode(text, add_special_tokens=False)
                found.whole.append(time.perf_counter() - started)
                found.num_tokens = len(encoding.ids)
                assert encoding.ids == tokens.token_ids.tolist(), "not what encoding the file whole gives"
    return found


def measure_watching(
    folder: Path, sources: Sources, tokenizer_file: Path, files: int, rounds: int, seed: int
) -> Watching:
    """Write single files, and switch branches that differ in `files` files, under the eyes of a watcher."""
    texts = list(sources.texts(files, seed))
    write_repository(folder, texts)
    run_git(folder, "init", "--quiet", "--initial-branch=main")
    run_git(folder, "add", "--all", "--force")
    run_git(folder, "commit", "--quiet", "--message=before")
    run_git(folder, "checkout", "--quiet", "-b", "other")
    write_repository(folder, [(suffix, _edit_line(text)) for suffix, text in texts])
    run_git(folder, "commit", "--quiet", "--all", "--message=after")
    found = Watching(switch_files=files)
    tokenizer = BPETokenizer.from_file(tokenizer_file)
    with RepoCache.open(folder, tokenizer, debounce_seconds=DEBOUNCE_SECONDS) as cache:
        _measure_delays(folder, cache, 10 * rounds, found)
        for number in range(2 * rounds):
            _measure_switch(folder, cache, "main" if number % 2 == 0 else "other", found)
    return found


def _measure_delays(folder: Path, cache: RepoCache, count: int, found: Watching) -> None:
    with cache.subscribe() as subscription:
        for number in range(count):
            (folder / "fresh.py").write_text(f"value = {number}\n", encoding="utf-8")
            written = time.perf_counter()
            update = subscription.get(PATIENCE_SECONDS)
            assert update is not None, "a write was not seen"
            found.delays.append(time.perf_counter() - written - DEBOUNCE_SECONDS)


def _measure_switch(folder: Path, cache: RepoCache, branch: str, found: Watching) -> None:
    before = cache.snapshot()
    with cache.subscribe() as subscription:
        started = time.perf_counter()
        run_git(folder, "checkout", "--quiet", branch)
        switched = time.perf_counter()
        while sum(1 for _ in cache.changes(before)) < found.switch_files:
            update = subscription.get(PATIENCE_SECONDS)
            assert update is not None, f"a switch to {branch} was not seen whole"
    found.checkout_seconds.append(switched - started)
    found.switch_seconds.append(time.perf_counter() - switched)


def _edit_line(text: str) -> str:
    """Return the text with a line more in some places, as a branch has it."""
    lines = text.splitlines(keepends=True)
    for place in range(SWITCH_PARTS):
        lines.insert(len(lines) * place // SWITCH_PARTS, f"# on another branch, {place}\n")
    return "".join(lines)
