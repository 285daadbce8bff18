"""What the packages load: an installation for a CPU has no Triton."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["triton"] = None
import engine.core, kernels.accept, kernels.attention, kernels.paged_attention, kernels.parity, kernels.rms_norm
import kernels.rope, kernels.rope_write, kernels.span_placement, kernels.swiglu, kernels.tune
from kernels.op import OP_NAMES, load_op
assert [load_op(name).name for name in OP_NAMES] == list(OP_NAMES)
"""


def test_kernels_and_engine_load_without_triton() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
