"""Keeps a bf16 copy of a GGUF model on disk, as an ordinary model folder, so that the next start is quick.

<cache>/converted/<key>/    config.json, model.safetensors, tokenizer.json, tokenizer_config.json

The copy is made beside its place and renamed, so a folder that is there is complete.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from agent_runtime.models.resolve import ModelFiles

LAYOUT = 1
"""Goes up when a copy made by an earlier version must not be taken."""

BUILDING = ".building-"
ABANDONED_SECONDS = 3600
"""A folder that has been under construction for so long belongs to a process that was killed."""

SPARE_BYTES = 1 << 30
"""Disk space that a copy, which is only a convenience, leaves to others."""


def copy_path(files: ModelFiles, cache_dir: Path) -> Path:
    """Where the copy of a GGUF file lies, or would lie: another file, or a changed one, has another place."""
    stat = files.path.stat()
    identity = files.sha256 or f"{files.path}:{stat.st_size}:{stat.st_mtime_ns}"
    key = blake2b(f"{LAYOUT}:{identity}".encode(), digest_size=16).hexdigest()
    return cache_dir / "converted" / key


def keep_copy(place: Path, num_bytes: int, write: Callable[[Path], None]) -> None:
    """Have `write` fill a folder and put it at `place`; where the disk does not allow it, go without."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(place.parent).free < num_bytes + SPARE_BYTES:
            return
        _remove_abandoned(place.parent)
        building = Path(tempfile.mkdtemp(prefix=BUILDING, dir=place.parent))
        try:
            write(building)
            building.rename(place)
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    for building in folder.glob(f"{BUILDING}*"):
        if time.time() - building.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(building, ignore_errors=True)


def write_tokenizer_config(folder: Path, *, chat_template: str, eos_token: str, bos_token: str) -> None:
    """The part of a model folder that holds the chat template and the names of the control tokens."""
    config = {"chat_template": chat_template, "eos_token": eos_token, "bos_token": bos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
