"""A process that runs models: its processors, how long threads spin, and how many kernels are cached."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

SPIN_COUNT = "2000"
"""Loop iterations for which a waiting thread spins before it sleeps; the default spins for milliseconds.

Measured with the 0.5B model on two cores, one apply, prefill + decode in seconds. Alone: default 4.2-4.5, this 4.1-5.0,
without spinning (OMP_WAIT_POLICY=PASSIVE) 5.0-5.6. With one other busy process: default 12.5-14.1 (35-40 during a test
run that used torch), this 8.5-8.9, without spinning 7.9-8.2. Two or three runs each. Plain decoding of the 135M model
alone is about a tenth slower with this."""


CACHED_KERNELS = "128"
"""Limit of the kernels that oneDNN caches. It makes one for every matrix shape, and a service sees new shapes
constantly.

A kernel takes 0.3-0.8 MB, and 0.3-0.5 ms to make. Two libraries cache 1,024 each by default: 1,600 shapes of attention
used 1.3 GB, with 256 kernels 0.3 GB, with 64 0.08. A forward pass over a new number of tokens then takes 2-3 ms longer.
Limiting only one of the two caches has no effect."""


def count_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_environment() -> None:
    """Set the variables. Call it before torch is imported, which reads them once.

    Variables that the user has set are kept.
    """
    assert "torch" not in sys.modules, "OpenMP and oneDNN read their settings when they are loaded"
    os.environ.update(build_environment(os.environ))


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a process that runs models, except those that the user has set."""
    caches = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    decided = any(name in environ for name in caches)
    return build_spin_environment(environ) | ({} if decided else dict.fromkeys(caches, CACHED_KERNELS))


def build_spin_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that limits how long OpenMP's threads spin."""
    decided = "OMP_WAIT_POLICY" in environ or "GOMP_SPINCOUNT" in environ
    return {} if decided else {"GOMP_SPINCOUNT": SPIN_COUNT}
