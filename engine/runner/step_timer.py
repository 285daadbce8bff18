"""Reads the step times of a model on this machine from a file, or measures them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from engine.decoder import Decoder
from engine.kv_pool import KVPool
from engine.runner.torch_runner import ModelRunner, count_measurable_rows
from engine.speculation.step_times import MEASURED, StepTimes, StepTimesFile, measure_least_seconds, measure_times

OUTDATED = 1.5
"""The stored times are outdated if single-row passes are now quicker by this factor, or if the ratio of a pass of
TELLING rows to a single-row pass has changed by it. Such times were measured beside other work, which slows single-row
passes the most, so that on an overloaded machine rows look free."""

TELLING = 64
"""Rows of the pass that shows whether the stored times have the right shape: between a single one and long drafts."""


def load_or_measure_times(
    passes: ModelRunner, model: Decoder, pool: KVPool, folder: Path | None, clock: Callable[[], float]
) -> StepTimes:
    """Return the times that the folder holds for this model and machine, or measure them and write them there.

    Measuring takes a second, and `pool` must hold nothing yet. Without a folder, return the default times. The times
    stay as they are, so that equal requests take equal passes. Where passes can be captured as graphs, those that are
    measured are captured first.
    """
    if folder is None:
        return StepTimes()
    file = StepTimesFile(folder, model.fingerprint.hex(), describe_machine(pool.device))
    most = count_measurable_rows(model, pool)
    for num_rows in MEASURED if passes.graphs is not None else ():
        passes.measure(min(num_rows, most))
    times = file.read()
    if times is None or _are_outdated(times, passes, most, clock):
        times = measure_times(passes.measure, clock, most)
        file.write(times)
    return times


def describe_machine(device: torch.device) -> str:
    """Return the name of the device, which with the model decides how long a pass takes."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    kind = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {kind}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _are_outdated(kept: StepTimes, passes: ModelRunner, most: int, clock: Callable[[], float]) -> bool:
    single = measure_least_seconds(passes.measure, 1, clock)
    if OUTDATED * single < kept(1):
        return True
    num_rows = min(TELLING, most)
    seconds = measure_least_seconds(passes.measure, num_rows, clock)
    return seconds > 0.0 and not 1.0 / OUTDATED < (seconds / single) / (kept(num_rows) / kept(1)) < OUTDATED
