"""Examines an installation: what a service or a command would find on this machine, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from agent_runtime.config.sources import ResolvedSettings, make_model_settings
from agent_runtime.errors import HunkError
from agent_runtime.local_services import list_services
from agent_runtime.models import config
from agent_runtime.models.added import list_added
from agent_runtime.models.store import ModelStore, resolve
from agent_runtime.process import count_cores
from agent_runtime.version import __version__

Status = Literal["good", "note", "bad"]

MIN_FREE_BYTES = 4 << 30
"""Free disk space below which a model and its converted copy may not fit."""

MEMORY_BYTES = {"qwen2.5-coder-1.5b": 5 << 30, "qwen2.5-coder-0.5b": 2 << 30, "smollm2-135m": 1 << 30}
"""Peak memory while a model of the catalogue runs, rounded up (docs/models.md)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined. advice: what to do, "" if nothing is to be done."""

    name: str
    status: Status
    what: str
    advice: str = ""


def examine(resolved: ResolvedSettings) -> list[Finding]:
    """Examine the installation; loads no model and asks no network but the loopback port of the settings."""
    parts = (
        _examine_versions,
        _examine_processor,
        _examine_memory,
        _examine_torch,
        _examine_compiler,
        _examine_models,
        _examine_disk,
        _examine_port,
        _examine_settings,
    )
    return [finding for part in parts for finding in part(resolved)]


def _examine_versions(_: ResolvedSettings) -> Iterator[Finding]:
    where = Path(__file__).resolve().parents[2]
    yield Finding(
        "hunk", "good", f"{__version__} in {where}, Python {platform.python_version()} on {platform.system()}"
    )
    if sys.platform != "linux":
        yield Finding("system", "note", f"hunk was never tried on {sys.platform}", "Report what does not work.")


def _examine_processor(_: ResolvedSettings) -> Iterator[Finding]:
    name, flags = _read_processor()
    known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    has = [flag for flag in known if flag in flags]
    what = f"{name}, {count_cores()} cores" + (f", {', '.join(has)}" if has else "")
    if not flags or "avx512_bf16" in flags or "amx_bf16" in flags:
        yield Finding("processor", "good", what)
    elif "avx512_vnni" in flags:
        yield Finding("processor", "good", f"{what}; without bf16, models run in int8")
    else:
        yield Finding(
            "processor",
            "note",
            f"{what}; without bf16 and VNNI, models run in float32 and are slow",
            "Edits by rule need no model. For others take qwen2.5-coder-0.5b, or a service on another machine.",
        )


def _read_processor() -> tuple[str, frozenset[str]]:
    """Return the processor's name and its flags; none where the system does not tell them."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = frozenset(value.split())
                break
    return name, flags


def _examine_memory(resolved: ResolvedSettings) -> Iterator[Finding]:
    total, free = _read_memory()
    if not total:
        return
    what = f"{total / (1 << 30):.1f} GiB, {free / (1 << 30):.1f} free"
    need = MEMORY_BYTES.get(resolved.values.model, 0)
    if free < need:
        advice = f"{resolved.values.model} takes up to {need >> 30} GiB: end other programs, or take a smaller model."
        yield Finding("memory", "bad" if total < need else "note", what, advice)
    else:
        yield Finding("memory", "good", what)


def _read_memory() -> tuple[int, int]:
    """Return the bytes of memory in all and free; 0 where the system does not tell them as Linux does."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    return 0, 0


def _examine_torch(_: ResolvedSettings) -> Iterator[Finding]:
    missing = [name for name in ("torch", "safetensors", "gguf") if find_spec(name) is None]
    if missing:
        advice = "Edits by rule work without. For a model: `pip install 'hunk-apply[model]'`."
        yield Finding("torch", "note", f"not installed: {', '.join(missing)}", advice)
        return
    import torch

    cards = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield Finding("torch", "good", f"{torch.__version__}, GPUs: {', '.join(cards) or 'none'}")
    if cards and find_spec("triton") is None:
        yield Finding("triton", "bad", "not installed, and the GPU needs it", "`pip install 'hunk-apply[gpu]'`.")


def _examine_compiler(_: ResolvedSettings) -> Iterator[Finding]:
    if find_spec("torch") is None or sys.platform != "linux":
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        advice = "Install g++ (Debian: `apt-get install g++`), or name a compiler in CXX."
        yield Finding("compiler", "note", f"no {compiler}: models run without our CPU kernels, slower", advice)
    else:
        yield Finding("compiler", "good", f"{compiler} at {shutil.which(compiler)}")


def _examine_models(resolved: ResolvedSettings) -> Iterator[Finding]:
    settings, name = make_model_settings(os.environ, resolved), resolved.values.model
    store = ModelStore(settings.cache_dir)
    here = [entry.name for entry in config.CATALOGUE if store.state(entry) in ("present", "verified")]
    try:
        here += [model.name for model in list_added(settings.cache_dir)]
        if name != config.NO_MODEL and name not in here:
            resolve(name, store)
    except HunkError as fault:
        yield Finding("models", "note", f"{fault}", "Edits by rule need none.")
    else:
        yield Finding("models", "good", f"{', '.join(here) or 'none'} in {settings.cache_dir}; {name} is used")


def _examine_disk(resolved: ResolvedSettings) -> Iterator[Finding]:
    folder = make_model_settings(os.environ, resolved).cache_dir
    nearest = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(nearest).free
    what = f"{free / (1 << 30):.0f} GiB free for {folder}"
    if not os.access(nearest, os.W_OK):
        yield Finding("disk", "bad", f"{folder} cannot be written", "Name another folder in HUNK_CACHE.")
    elif free < MIN_FREE_BYTES:
        advice = "A model and its converted copy take up to 4 GiB: `hunk models rm`, or another folder in HUNK_CACHE."
        yield Finding("disk", "note", what, advice)
    else:
        yield Finding("disk", "good", what)


def _examine_port(resolved: ResolvedSettings) -> Iterator[Finding]:
    host, port = resolved.values.host, resolved.values.port
    for service in list_services():
        roots = ", ".join(service.roots) or "no folder"
        yield Finding("service", "good", f"{service.url}, process {service.pid}, {service.model}, {roots}")
    mine = any(service.url.endswith(f":{port}") for service in list_services())
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        if not mine:
            advice = "`hunk serve --port 0` takes a free one."
            yield Finding("port", "note", f"{port} on {host} is taken by another program", advice)
        return
    yield Finding("port", "good", f"{port} on {host} is free")


def _examine_settings(resolved: ResolvedSettings) -> Iterator[Finding]:
    changed = [name for name, origin in resolved.origins.items() if origin.layer != "default"]
    where = resolved.file.path if resolved.file.found else "no file"
    yield Finding("settings", "good", f"{where}; changed: {', '.join(changed) or 'none'} (`hunk config show`)")
