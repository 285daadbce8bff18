"""The key of a cache folder, with which what is derived from models and prompts there is authenticated (HMAC)."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from repo_cache.private_folder import make_private_file

NUM_BYTES = 32


def cache_key(cache_dir: Path) -> bytes:
    """The folder's key, from `<cache>/key` (0600), which is made where there is none.

    Where none can be kept, or it belongs to somebody else, it is one of this call: what was authenticated with another
    is made anew.
    """
    path, fresh = cache_dir / "key", secrets.token_bytes(NUM_BYTES)
    try:
        if not path.exists():
            cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            _put(path, fresh)
        make_private_file(path)
        key = path.read_bytes()
        if len(key) != NUM_BYTES:
            path.unlink()
            _put(path, fresh)
            key = path.read_bytes()
    except OSError:
        return fresh
    return key


def _put(path: Path, key: bytes) -> None:
    """Give the key its name when it is whole, unless another process has been quicker; raises OSError."""
    temporary = path.with_name(f".key-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
