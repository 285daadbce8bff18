"""Keeps an authenticated bf16 copy of a GGUF model on disk, so that the next start is quick.

<cache>/converted/<key>/    config.json, model.safetensors, tokenizer.json, tokenizer_config.json, seal.json

The copy is made beside its place and renamed, so a folder that is there is complete. Its seal names the SHA-256 of the
file that it was made of and of each file in it, authenticated with the cache folder's key. A start reads the seal and
looks at the files' sizes, times and inodes; it hashes a file only where these are not as sealed.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b, file_digest, sha256
from hmac import compare_digest
from pathlib import Path

from agent_runtime.atomic_file import write_temporary
from agent_runtime.models.store import ModelFiles
from repo_cache.files import make_private, make_private_file

NUM_BYTES = 32


def load_cache_key(cache_dir: Path) -> bytes:
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
    """Write the key unless another process has just written one; raises OSError."""
    with write_temporary(path, key, sync=False) as temporary, contextlib.suppress(FileExistsError):
        os.link(temporary, path)


LAYOUT = 1
"""Goes up when a copy made by an earlier version must not be taken."""

SEAL = "seal.json"

BUILDING = ".building-"
ABANDONED_SECONDS = 3600
"""A folder that has been under construction for so long belongs to a process that was killed."""

SPARE_BYTES = 1 << 30
"""Disk space that a copy, which is only a convenience, leaves to others."""


def locate_copy(files: ModelFiles, cache_dir: Path) -> Path:
    """Return the folder of the copy of a GGUF file; another or a changed file has another folder."""
    stat = files.path.stat()
    identity = files.sha256 or f"{files.path}:{stat.st_size}:{stat.st_mtime_ns}"
    key = blake2b(f"{LAYOUT}:{identity}".encode(), digest_size=16).hexdigest()
    return cache_dir / "converted" / key


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def seal_copy(folder: Path, source: Path, source_sha256: str, key: bytes) -> None:
    """Say what a copy was made of and what it holds; raises OSError."""
    files = {path.name: [hash_file(path), *_read_stamp(path)] for path in sorted(folder.iterdir())}
    content = json.dumps({"source": [source_sha256, *_read_stamp(source)], "files": files})
    (folder / SEAL).write_text(json.dumps({"content": content, "mac": _sign(content, key)}), encoding="ascii")


def is_sealed(folder: Path, files: ModelFiles, key: bytes, *, hash_all: bool = False) -> bool:
    """Return whether a copy matches its seal; with `hash_all` all bytes are hashed, whatever sizes and times say."""
    try:
        sealed = json.loads((folder / SEAL).read_bytes())
        if not compare_digest(sealed["mac"], _sign(sealed["content"], key)):
            return False
        content = json.loads(sealed["content"])
        source_sha256, *stamp = content["source"]
        if files.sha256 and files.sha256 != source_sha256:
            return False
        if not files.sha256 and stamp != _read_stamp(files.path) and hash_file(files.path) != source_sha256:
            return False
        if {path.name for path in folder.iterdir()} != {SEAL, *content["files"]}:
            return False
        for name, (sha256, *stamp) in content["files"].items():
            path = folder / name
            if (hash_all or stamp != _read_stamp(path)) and hash_file(path) != sha256:
                return False
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    return True


def find_copy(files: ModelFiles, cache_dir: Path) -> Path | None:
    """The copy of a GGUF file, where there is one and it is as it was made; raises OSError."""
    place = locate_copy(files, cache_dir)
    return place if place.is_dir() and is_sealed(place, files, load_cache_key(cache_dir)) else None


def remove_damaged_copy(files: ModelFiles, cache_dir: Path) -> bool:
    """Hash all of a GGUF file's copy, and remove it where it is not as it was made; returns whether it was."""
    if files.kind != "gguf" or not (place := locate_copy(files, cache_dir)).is_dir():
        return False
    if is_sealed(place, files, load_cache_key(cache_dir), hash_all=True):
        return False
    shutil.rmtree(place, ignore_errors=True)
    return True


def _read_stamp(path: Path) -> list[int]:
    """Return what any write to a file changes: only root can set its ctime."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _sign(content: str, key: bytes) -> str:
    return hmac.new(key, content.encode(), sha256).hexdigest()


def save_copy(place: Path, num_bytes: int, write: Callable[[Path], None]) -> None:
    """Have `write` fill a folder and put it at `place`; where the disk does not allow it, go without."""
    with contextlib.suppress(OSError):
        make_private(place.parent)
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
