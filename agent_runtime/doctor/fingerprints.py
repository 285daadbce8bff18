"""Remembers the fingerprint of a model's weights, so that only the first question about them reads the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path


def known_fingerprint(weights: Path, cache_dir: Path, compute: Callable[[], str]) -> str:
    """That of a folder's weights, in hex; `compute` is asked where its files are not those of last time."""
    stats = [(each.name, each.stat()) for each in sorted(weights.iterdir()) if each.is_file()]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    key = blake2b(f"{weights.resolve()} {files}".encode(), digest_size=16).hexdigest()
    place = cache_dir / "fingerprints" / key
    with contextlib.suppress(OSError, ValueError):
        if kept := bytes.fromhex(place.read_text(encoding="ascii")):
            return kept.hex()
    fingerprint = compute()
    with contextlib.suppress(OSError):  # it only saves time
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(fingerprint, encoding="ascii")
    return fingerprint
