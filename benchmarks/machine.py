"""Says on what machine a measurement was made."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> str:
    """Processor, cores in use, memory and the versions that decide speed, in one line."""
    return (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {_memory_gib():.0f} GiB, "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "")
    extensions = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if f" {flag}" in cpuinfo]
    return f"{model or platform.machine()} ({extensions[0] if extensions else 'no vector extension known'})"


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
