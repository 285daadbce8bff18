"""The prefill speed of a model on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from agent_runtime.doctor.diagnosis import Speed
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, find_copy, resolve


def find_fingerprint(weights: Path, cache_dir: Path, compute: Callable[[], str]) -> str:
    """Return the fingerprint of a folder's weights in hex, from the cache or, where its files changed, by `compute`."""
    stats = [(each.name, each.stat()) for each in sorted(weights.iterdir()) if each.is_file()]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    key = blake2b(f"{weights.resolve()} {files}".encode(), digest_size=16).hexdigest()
    path = cache_dir / "fingerprints" / key
    with contextlib.suppress(OSError, ValueError):
        if kept := bytes.fromhex(path.read_text(encoding="ascii")):
            return kept.hex()
    fingerprint = compute()
    with contextlib.suppress(OSError):  # it only saves time
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fingerprint, encoding="ascii")
    return fingerprint


ROWS = 1024
"""Tokens of the prefill step whose time is looked up."""


def find_measured_speed(name_or_path: str, settings: ModelSettings) -> Speed | None:
    """Find the speed of a model's bf16 weights; None where the engine has not measured it on this machine.

    Takes a second or two the first time, as times are stored by the weights' fingerprint. Raises UnknownModel,
    ModelUnavailable.
    """
    folder = settings.cache_dir / "pass-times"
    if not any(folder.glob("*.json")):
        return None
    files = resolve(name_or_path, ModelStore(settings.cache_dir))
    weights = files.path if files.kind == "safetensors" else find_copy(files, settings.cache_dir)
    if weights is None:
        return None
    import torch  # a slow import

    from engine.errors import WeightsError
    from engine.runner.torch_runner import describe_machine
    from engine.speculation.step_times import StepTimesFile
    from engine.weights import load
    from engine.weights.checkpoint import fingerprint

    def compute() -> str:
        return fingerprint(load(weights, torch.bfloat16)).hex()

    try:
        name = find_fingerprint(weights, settings.cache_dir, compute)
    except WeightsError:
        return None
    times = StepTimesFile(folder, name, describe_machine(torch.device("cpu"))).read()
    return None if times is None else Speed(ROWS / times(ROWS), "measured")
