"""How this process shares the machine's cores with others."""

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


def spin_briefly() -> None:
    """Have GNU OpenMP's threads sleep soon while they wait; call it before torch is imported.

    Whatever the environment says already, in `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT`, stays.
    """
    assert "torch" not in sys.modules, "OpenMP reads its settings when it is loaded"
    os.environ.update(spin_settings(os.environ))


def spin_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process should find in its environment to spin briefly; nothing where the user has decided."""
    decided = "OMP_WAIT_POLICY" in environ or "GOMP_SPINCOUNT" in environ
    return {} if decided else {"GOMP_SPINCOUNT": SPINS}
