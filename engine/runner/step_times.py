"""Measures or reads the step times of an engine, and measures again once they are outdated."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from engine.decoder import Decoder
from engine.kv_pool import KVPool
from engine.runner.torch_runner import Passes, most_measured
from engine.speculation.step_times import MEASURED, Corrections, PassTimes, PassTimesFile, least_seconds, measured

TOLD = 0.75
"""A pass tells something where at least that share of its rows was scored: the LM head is not run within prompts, and
not in blocks of rows behind a departure, so other passes are quicker than the times say."""

OUTDATED = 1.5
"""If single passes are quicker than those kept by that factor, or passes of TELLING rows cost more or less than that
factor of what those kept say, told in single passes, the kept ones ran beside something else. That slows all of them,
but not all alike: single passes the most, so that on an overloaded machine rows look free."""

TELLING = 64
"""Rows of the pass that tells whether the kept times have the right shape: between a single one and what drafts run."""


class TimedPasses:
    """Has the `times` that are read from a folder, or measured and kept there; without one, the default ones.

    They stay as they are, so that equal requests take equal passes, while the passes that run show them to be right
    within a wide band. What leaves it is corrected at once and written down, so that the next start reads it.
    """

    def __init__(
        self, passes: Passes, model: Decoder, pool: KVPool, folder: Path | None, clock: Callable[[], float]
    ) -> None:
        """Takes a second where the folder has no times of this model on this machine; `pool` must hold nothing yet.

        Where passes can be captured, those that tell are first: their times are what all later ones take.
        """
        self.times = PassTimes()
        self._file = None if folder is None else PassTimesFile(folder, model.fingerprint.hex(), machine(pool.device))
        if self._file is not None:
            most = most_measured(model, pool)
            for num_rows in MEASURED if passes.graphs is not None else ():
                passes.measure(min(num_rows, most))
            kept = self._file.read()
            if kept is None or _are_outdated(kept, passes, most, clock):
                kept = measured(passes.measure, clock, most)
                self._file.write(kept)
            self.times = kept
        self._corrections = Corrections(self.times)

    def observe(self, num_rows: int, num_scored: int, seconds: float) -> None:
        """Learn from a pass; so many of its rows went through the LM head."""
        if self._file is not None and num_scored >= TOLD * num_rows:
            self._corrections.observe(num_rows, seconds)
            if self._corrections.is_large:
                self.times.replace(self._corrections.corrected)
                self._file.write(self.times)
                self._corrections = Corrections(self.times, self._corrections.level)


def machine(device: torch.device) -> str:
    """What the time of a pass depends on, but for the model."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    kind = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {kind}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _are_outdated(kept: PassTimes, passes: Passes, most: int, clock: Callable[[], float]) -> bool:
    single = least_seconds(passes.measure, 1, clock)
    if OUTDATED * single < kept(1):
        return True
    num_rows = min(TELLING, most)
    seconds = least_seconds(passes.measure, num_rows, clock)
    return seconds > 0.0 and not 1.0 / OUTDATED < (seconds / single) / (kept(num_rows) / kept(1)) < OUTDATED
