"""Measure how well sums of ranks are hidden on a link of limited rate: `python -m benchmarks.overlap`.

Two ranks run the same passes of one model, each on half of the cores. Sums go through memory that both share, or, with
`--gloo`, through the loopback interface. They are held back until a link of the given rate would have carried them,
one after the other: for each rank as many bytes as the summed tensor has (a ring of two). Rates are set so that the
link takes half as long as the products, as long, or twice as long. The bound is the longer of both alone: `bound` over
the measured seconds is 1 at best. Sums are added up on the same cores, which no overlap hides: `sums` are the seconds
that this adds to a pass without a limit of the rate, and `with sums` is the bound that has them beside the products.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, find_tensor_folder, resolve
from benchmarks.harness import Row, describe_machine, make_parser, render_rows, say, warn_if_busy, write_json
from engine.errors import EngineError
from engine.runner.step_rows import PagedRows
from engine.tensor_parallel import RankGroup, Shard, ShardDecoder, load_shard
from engine.tensor_parallel.decoder import OVERLAPS, Overlap
from engine.tensor_parallel.group import Work, find_memory_folder
from engine.tensor_parallel.runner import ShardRows, build_rows_runner

CONTEXT, PAGE_SIZE = 256, 32
SHARES = (0.5, 1.0, 2.0)
"""Seconds of the link, of those of the products."""


@dataclass(slots=True)
class _Held:
    """A sum that is there when the link has carried it, or at once."""

    work: Work | None
    arrives: float

    def wait(self) -> None:
        """As `Work.wait`."""
        if self.work is not None:
            self.work.wait()
        while (left := self.arrives - time.perf_counter()) > 0:
            time.sleep(left)


class SlowLink(RankGroup):
    """A group whose sums are held back. bytes_per_s: of the link; None: nothing is summed. num_bytes: what was sent."""

    bytes_per_s: float | None = None
    num_bytes = 0
    _free = 0.0

    def start_sum(self, tensor: Tensor) -> Work:
        """As `RankGroup.start_sum`."""
        self.num_bytes += tensor.nbytes
        if self.bytes_per_s is None:
            return _Held(None, 0.0)
        self._free = max(self._free, time.perf_counter()) + tensor.nbytes / self.bytes_per_s
        return _Held(super().start_sum(tensor), self._free)


class Passes:
    """Runs and times the passes of one rank; both ranks do the same in the same order."""

    def __init__(self, folder: Path, rank: int, meeting: Path, *, shares_memory: bool) -> None:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
        self.link = SlowLink(rank, 2, meeting, torch.device("cpu"), shares_memory=shares_memory)
        parameters = load_shard(folder, torch.float32, Shard(rank, 2))
        self.model = ShardDecoder(parameters, group=self.link)
        num_pages = -(-(CONTEXT + 1024) // PAGE_SIZE)
        _, runner = build_rows_runner(self.model, num_pages, PAGE_SIZE)
        self._rows = ShardRows(self.model, runner)
        self._pages = range(num_pages)

    def time(self, num_rows: int, overlap: Overlap, bytes_per_s: float | None, turns: int) -> float:
        """Return the median of some passes' seconds, after one that is not counted."""
        self.link.bytes_per_s = bytes_per_s
        rows = PagedRows([0] * num_rows, range(CONTEXT, CONTEXT + num_rows), self._pages)
        seconds = []
        for _ in range(turns + 1):
            self.link.broadcast(torch.zeros(1))  # both begin together
            started = time.perf_counter()
            self._rows.run([rows], overlap)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])

    def compare(self, sizes: list[int], turns: int, report: Callable[[Row], None]) -> None:
        """Time each size of pass with each share of the link and each overlap."""
        for num_rows in sizes:
            before = self.link.num_bytes
            compute_s = self.time(num_rows, "none", None, turns)
            shared = torch.tensor([compute_s], dtype=torch.float64)
            self.link.broadcast(shared)  # rates are those of the first rank on both
            compute_s, sent = float(shared), (self.link.num_bytes - before) / (turns + 1)
            sums_s = max(0.0, self.time(num_rows, "none", math.inf, turns) - compute_s)
            for share in SHARES:
                rate = sent / (share * compute_s)
                found = {overlap: self.time(num_rows, overlap, rate, turns) for overlap in OVERLAPS}
                bound = max(compute_s, share * compute_s)
                report(
                    {"rows": num_rows, "compute": compute_s, "sums": sums_s, "wire": share * compute_s, "bound": bound}
                    | found
                    | {"best": bound / min(found.values()), "plain": bound / found["none"]}
                    | {"with_sums": max(compute_s + sums_s, share * compute_s) / min(found.values())}
                )


def main() -> None:
    """Measure, print the table and write the JSON."""
    options = _options()
    print(describe_machine(), flush=True)
    load, rows = warn_if_busy(), list[Row]()
    try:
        settings = ModelSettings.from_env(os.environ)
        files = resolve(options.model, ModelStore(settings.cache_dir))
        folder = find_tensor_folder(files, settings.cache_dir)
        if not folder.is_dir():
            sys.exit(f"{options.model} has no converted copy yet; `hunk apply --model {options.model}` makes it")
        with tempfile.TemporaryDirectory(dir=find_memory_folder()) as meetings:
            sizes = [int(size) for size in options.rows.split(",")]
            meeting, shares_memory = Path(meetings) / "meeting", not options.gloo
            arguments = folder, meeting, shares_memory, sizes, options.turns
            other = multiprocessing.get_context("spawn").Process(target=_follow, args=arguments, daemon=True)
            other.start()

            def report(row: Row) -> None:
                rows.append(row)
                say(render_rows([row], COLUMNS).splitlines()[-1])

            passes = Passes(folder, 0, meeting, shares_memory=shares_memory)
            passes.compare(sizes, options.turns, report)
            other.join()
    except (HunkError, EngineError, OSError, ValueError) as error:
        sys.exit(str(error))
    print(render_rows(rows, COLUMNS))
    summary = {"worst_best": min(row["best"] for row in rows), "worst_plain": min(row["plain"] for row in rows)}
    better, plain = summary["worst_best"], summary["worst_plain"]
    print(f"of the bound at least {better:.2f} with the better overlap, {plain:.2f} without")
    asked = {"model": options.model, "gloo": options.gloo}
    meta = {"machine": describe_machine(), "load_at_start": load, "summary": summary} | asked
    write_json(options.json, meta, rows)


def _follow(folder: Path, meeting: Path, shares_memory: bool, sizes: list[int], turns: int) -> None:
    Passes(folder, 1, meeting, shares_memory=shares_memory).compare(sizes, turns, lambda row: None)


def _options() -> argparse.Namespace:
    parser = make_parser("overlap", __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue")
    parser.add_argument("--rows", default="8,64,256", help="rows of the passes")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--gloo", action="store_true", help="sums go through gloo, not through shared memory")
    options = parser.parse_args()
    if options.turns < 1 or not all(size.isdigit() and int(size) > 1 for size in options.rows.split(",")):
        parser.error("--turns must be at least 1, and --rows numbers from 2 on, with commas between")
    return options


COLUMNS = {
    "rows": "{rows}",
    "compute s": "{compute:.3f}",
    "sums s": "{sums:.3f}",
    "link s": "{wire:.3f}",
    "none": "{none:.3f}",
    "in parts": "{parts:.3f}",
    "in halves": "{halves:.3f}",
    "bound / none": "{plain:.2f}",
    "bound / best": "{best:.2f}",
    "with sums": "{with_sums:.2f}",
}


if __name__ == "__main__":
    main()
