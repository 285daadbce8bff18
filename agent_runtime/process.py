"""How this process shares the machine with others: how its threads wait, how much its kernels may keep."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

SPINS = "2000"
"""Turns of the loop in which a thread waits for the others before it sleeps; the default spins for milliseconds.

Measured with the 0.5B model on two cores, one apply, prefill + decode in seconds. Alone: default 4.2-4.5, this
4.1-5.0, sleeping at once (OMP_WAIT_POLICY=PASSIVE) 5.0-5.6. With one other busy process: default 12.5-14.1 (35-40
beside a test run that used torch), this 8.5-8.9, sleeping at once 7.9-8.2. Two or three runs each. Plain decoding of
the 135M model alone is about a tenth slower with this.
"""


CACHED_KERNELS = "128"
"""Kernels that oneDNN keeps; it makes one for every shape of a product, and a service meets ever new ones.

A kernel takes 0.3-0.8 MB, and 0.3-0.5 ms to make. Two libraries keep 1,024 each by default: 1,600 shapes of attention
left 1.3 GB behind, with 256 kernels 0.3 GB, with 64 0.08. A pass over a new number of tokens then takes 2-3 ms longer.
To cap only one of the two caches does nothing.
"""


def settle() -> None:
    """Have this process share the machine; call it before torch is imported, which reads the environment once.

    What the environment says already stays.
    """
    assert "torch" not in sys.modules, "OpenMP and oneDNN read their settings when they are loaded"
    os.environ.update(settings(os.environ))


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process that runs models should find in its environment; nothing where the user has decided."""
    caches = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    decided = any(name in environ for name in caches)
    return spin_settings(environ) | ({} if decided else dict.fromkeys(caches, CACHED_KERNELS))


def spin_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What has OpenMP's threads sleep soon while they wait."""
    decided = "OMP_WAIT_POLICY" in environ or "GOMP_SPINCOUNT" in environ
    return {} if decided else {"GOMP_SPINCOUNT": SPINS}
