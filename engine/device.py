"""Resolves device names, reports why a device cannot be used, and describes the machine."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import DeviceError, DeviceLost
from kernels.native import compute_digest

NAMES = re.compile(r"cpu|mps|cuda(:\d+)?")

CGROUP = Path("/sys/fs/cgroup")
"""Of this process, in a container."""

ON_THE_CPU = "or leave the device out to run on the CPU"


def resolve_device(name: str) -> torch.device:
    """Return the device of 'cpu', 'cuda' (the first card), 'cuda:1' or 'mps' (a Mac's GPU, which nobody has tried).

    Raises DeviceError, which says what to do.
    """
    if not NAMES.fullmatch(name):
        raise DeviceError(f"device {name!r} is none of cpu, cuda, cuda:N and mps; {ON_THE_CPU}")
    if name == "mps" and not torch.backends.mps.is_available():
        raise DeviceError(f"device 'mps' cannot be had; it is the GPU of a Mac with macOS 14 or later, {ON_THE_CPU}")
    if name in ("cpu", "mps"):
        return torch.device(name)
    if not torch.cuda.is_available():
        missing = (
            "this torch is built without CUDA: install one that has it"
            if torch.version.cuda is None
            else ("torch finds no NVIDIA card: `nvidia-smi` tells whether the driver does")
        )
        raise DeviceError(f"device {name!r} cannot be had; {missing}, {ON_THE_CPU}")
    if find_spec("triton") is None:
        raise DeviceError(f"device {name!r} needs Triton: `pip install 'hunk-apply[gpu]'`, {ON_THE_CPU}")
    index, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
    if index >= count:
        raise DeviceError(f"device {name!r} cannot be had; there are {count} cards, the last is cuda:{count - 1}")
    return torch.device("cuda", index)


def get_free_bytes(device: torch.device) -> int | None:
    """Return the memory that a card or this process may still have; None where the system does not tell it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    free = []
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # of a container; "max" is no number
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(limit - used)
    return min(free, default=None)


def use_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which kernels launch on this device; otherwise the current one is the first card in every
    thread.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def map_host_memory(memory: Tensor, device: torch.device) -> Callable[[], object]:
    """Let a card read and write host memory in place, over the bus. Return what ends that, before the memory is freed.

    Nothing is done for other devices. Raises DeviceError where the driver refuses.
    """
    if device.type != "cuda":
        return lambda: None
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with use_device(device):
        code = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if code:
        size_gb = memory.nbytes / 1e9
        raise DeviceError(f"{device} cannot use {size_gb:.1f} GB of host memory (cudaHostRegister: error {code})")
    return partial(runtime.cudaHostUnregister, memory.data_ptr())


def check_device(device: torch.device) -> None:
    """Wait for a card; raises DeviceLost if that fails. Other devices cannot be lost."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise DeviceLost(f"the card {device} is lost to this process: {str(error).splitlines()[0]}") from error


def describe_machine(device: torch.device) -> str:
    """Return the name of the device and what limits its instructions."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    kind = torch.backends.cpu.get_cpu_capability()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "all")
    return f"{name}, {kind}, oneDNN {limit}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def describe_build(device: torch.device) -> str:
    """Return the machine and, of a CPU, the build of our kernels: what the times of passes are kept for."""
    machine = describe_machine(device)
    return machine if device.type == "cuda" else f"{machine}, kernels {compute_digest()}"
