"""Which card winners hold for, and what it allows a kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of card, and the software that compiles and runs kernels on it."""

    name: str
    driver: str
    torch: str
    triton: str
    shared_bytes: int
    """Shared memory that one block of threads may have."""
    l2_bytes: int


def file_name(card_name: str) -> str:
    """Of the store of a card's winners, one for each kind of card in a folder: 'nvidia-h100-80gb-hbm3.json'."""
    return re.sub(r"[^a-z0-9]+", "-", card_name.lower()).strip("-") + ".json"


def card_of(device: torch.device) -> Card:
    """What is known of a CUDA device."""
    from triton.runtime import driver

    properties = torch.cuda.get_device_properties(device)
    with torch.cuda.device(device):  # which of them 'cuda' is
        index = torch.cuda.current_device()
    return Card(
        name=properties.name,
        driver=_driver_version(),
        torch=torch.__version__,
        triton=triton_version(),
        shared_bytes=driver.active.utils.get_device_properties(index)["max_shared_mem"],
        l2_bytes=properties.L2_cache_size,
    )


def triton_version() -> str:
    """Of the Triton that compiles kernels in this process."""
    import triton

    return str(triton.__version__)


def _driver_version() -> str:
    """torch knows the driver's CUDA version only, so that the tool that comes with every driver is asked."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    asked = subprocess.run(
        [tool, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    lines = asked.stdout.split()
    return lines[0] if asked.returncode == 0 and lines else "unknown"
