"""The kernels in C++ for CPUs, compiled together at first use, and kept in the cache folder."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from kernels.atomic_file import replace_file
from kernels.winners import get_default_folder

log = logging.getLogger(__name__)

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in ("block.h", "linear.cpp", "attention.cpp", "pack.cpp", "elementwise.cpp", "counters.cpp")
)
OPTIONS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared")

Function = Any


def find_function(name: str, dtype: torch.dtype) -> Function | None:
    """Return a kernel for this dtype, None if there is none here; compiles them at the first call.

    They need Linux and a compiler, `$CXX` or g++, and for bf16 a CPU with AVX512-BF16.
    """
    library = _load()
    function: Function | None = getattr(library, f"{name}_{dtype}".replace("torch.", ""), None)
    return function


MOST_TIMES_SLOWER = 1.3
"""A kernel of ours is taken unless it takes this many times as long as what a library has: with AMX, a library's
products of many rows are several times faster.
"""


def time_in_turns(functions: Sequence[Callable[[], object]], repeats: int = 10) -> list[float]:
    """Return the least seconds of each of some functions, which are called in turns, after a first call of each.

    One thread runs them: where other work takes a core, several threads wait for each other in every call.
    """
    seconds, num_threads = [math.inf] * len(functions), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for repeat in range(1 + repeats):
            for at, function in enumerate(functions):
                started = time.perf_counter()
                function()
                if repeat:
                    seconds[at] = min(seconds[at], time.perf_counter() - started)
    finally:
        torch.set_num_threads(num_threads)
    return seconds


@cache
def compute_digest() -> str:
    """Return 16 hex digits of the kernels' sources and options, by which what was measured with them is kept; "none"
    if there is no compiler.
    """
    command = _make_command()
    if command is None:
        return "none"
    content = b"".join(each.read_bytes() for each in SOURCES)
    return blake2b(f"{command}".encode() + content, digest_size=8).hexdigest()


@cache
def _make_command() -> list[str] | None:
    """Return the command that compiles the kernels, but for the output's path; None if they cannot be compiled."""
    if platform.system() != "Linux":
        return None
    wanted = os.environ.get("CXX", "g++")
    compiler = shutil.which(wanted)
    if compiler is None:
        log.warning("there is no compiler %s, so torch computes, which is slower; install g++ or set CXX", wanted)
        return None
    units = [str(each) for each in SOURCES if each.suffix == ".cpp"]
    return [compiler, *OPTIONS, *_list_target_options(), *units, "-o"]


@cache
def _load() -> ctypes.CDLL | None:
    """Return the compiled kernels, from the cache folder if it has it; None if they cannot be had."""
    command, digest = _make_command(), compute_digest()
    if command is None:
        return None
    path = get_default_folder(os.environ) / "compiled" / f"kernels-{digest}.so"
    try:
        if _is_ours(path):
            return ctypes.CDLL(str(path))
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / path.name
            subprocess.run([*command, str(made)], check=True, capture_output=True, text=True, timeout=120)
            with suppress(OSError):  # the next process compiles it again
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(path, [made.read_bytes()])
            return ctypes.CDLL(str(made))
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        log.warning("the kernels for CPUs cannot be compiled; torch computes instead: %s", reason)
        return None


WITHOUT_VNNI = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE"}
WITHOUT_BF16 = WITHOUT_VNNI | {"AVX512_CORE_VNNI"}
"""oneDNN's names of instruction sets without AVX512-VNNI and AVX512-BF16."""


def _list_target_options() -> list[str]:
    """Return the options for the instructions that torch uses here, which `ATEN_CPU_CAPABILITY` and
    `ONEDNN_MAX_CPU_ISA` can lower.
    """
    if platform.machine() != "x86_64":
        return ["-mcpu=native"]
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX512"):
        return ["-march=x86-64-v3" if capability == "AVX2" else "-march=x86-64"]
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    options = ["-march=x86-64-v4"]
    if isa not in WITHOUT_VNNI and torch.cpu._is_vnni_supported():
        options.append("-mavx512vnni")
    if isa not in WITHOUT_BF16 and torch.cpu._is_avx512_bf16_supported():
        options.append("-mavx512bf16")
    return options


def _is_ours(path: Path) -> bool:
    """Return whether the file exists and nobody else can have written it: its code is run in this process."""
    try:
        found = [each.stat() for each in (path, path.parent)]
    except OSError:
        return False
    return all(each.st_uid == os.getuid() and not each.st_mode & 0o022 for each in found)
