"""How fast a model reads prompts on this machine, from the pass times that the engine has measured and kept."""

from __future__ import annotations

from agent_runtime.doctor.diagnosis import Speed
from agent_runtime.doctor.fingerprints import known_fingerprint
from agent_runtime.models.converted import sealed_copy
from agent_runtime.models.resolve import resolve
from agent_runtime.models.settings import ModelSettings
from agent_runtime.models.store import Store

ROWS = 1024
"""Of a pass of the prefill, whose time is looked up."""


def measured_speed(name_or_path: str, settings: ModelSettings) -> Speed | None:
    """Of a model's bf16 weights; None where the engine has not yet measured it here.

    Takes a second or two the first time: times are kept under the weights' fingerprint. Raises UnknownModel,
    ModelUnavailable.
    """
    folder = settings.cache_dir / "pass-times"
    if not any(folder.glob("*.json")):
        return None
    files = resolve(name_or_path, Store(settings.cache_dir))
    weights = files.path if files.kind == "safetensors" else sealed_copy(files, settings.cache_dir)
    if weights is None:
        return None
    import torch  # takes a second to import

    from engine.errors import WeightsError
    from engine.speculation.pass_times_file import PassTimesFile
    from engine.timed_passes import machine
    from engine.weights import load
    from engine.weights.fingerprint import fingerprint

    def compute() -> str:
        return fingerprint(load(weights, torch.bfloat16)).hex()

    try:
        name = known_fingerprint(weights, settings.cache_dir, compute)
    except WeightsError:
        return None
    times = PassTimesFile(folder, name, machine(torch.device("cpu"))).read()
    return None if times is None else Speed(ROWS / times(ROWS), "measured")
