"""Files of models on this machine, found by catalogue name, path or .gguf file, and bf16 copies of GGUF models.

<root>/models/<name>/<file>.gguf           the model, complete
                     <file>.gguf.partial   an interrupted pull, which the next one continues
                     <file>.gguf.json      size, time of change and SHA-256 when it was last hashed
                     .lock, .fetch-*       of a running pull
<root>/converted/<key>/                    bf16 copy of a GGUF model, with which the next start is quick
                       config.json, model.safetensors, tokenizer.json, tokenizer_config.json, seal.json

A copy is built in a temporary folder and renamed, so an existing folder is complete. Its seal holds the SHA-256 of the
source file and of each of its own files, authenticated with the cache folder's key. A start reads the seal and compares
sizes, times and inodes; it hashes a file only if these differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, file_digest, sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any, Literal

from agent_runtime.errors import CorruptModel, ModelUnavailable, UnknownModel
from agent_runtime.files import write_temporary
from agent_runtime.models import config
from agent_runtime.models.added import find_added
from agent_runtime.models.config import CatalogueEntry, HubModel
from agent_runtime.models.progress import Progress, SilentProgress
from agent_runtime.prompt.forms import DEFAULT
from repo_cache.files import make_private, make_private_file

CHUNK_BYTES = 1 << 20

DownloadState = Literal["absent", "partial", "present", "verified"]


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The folder of models under `root`, which may not exist yet."""

    root: Path

    def folder(self, entry: CatalogueEntry | HubModel) -> Path:
        """Return the model's own folder."""
        return self.root / "models" / entry.name

    def path(self, entry: CatalogueEntry) -> Path:
        """Return the path of the model's file, whether it exists or not."""
        return self.folder(entry) / entry.file_name

    def partial_path(self, entry: CatalogueEntry) -> Path:
        """Return the path of the unfinished file of a pull."""
        return self.path(entry).with_name(entry.file_name + ".partial")

    def record_path(self, entry: CatalogueEntry) -> Path:
        """Return the path of the record of the last verification."""
        return self.path(entry).with_name(entry.file_name + ".json")

    def state(self, entry: CatalogueEntry) -> DownloadState:
        """Return the state of the model; `verified` if its hash was right and the file is unchanged since. Hashes
        nothing.
        """
        path = self.path(entry)
        if not path.is_file():
            return "partial" if self.partial_path(entry).is_file() else "absent"
        try:
            record = json.loads(self.record_path(entry).read_bytes())
        except (OSError, ValueError):
            return "present"
        return "verified" if record == _make_record(path, entry.sha256) else "present"

    def mark_verified(self, entry: CatalogueEntry) -> None:
        """Record that the current file has the right SHA-256; a read-only cache keeps no record."""
        with contextlib.suppress(OSError):
            self.record_path(entry).write_text(
                json.dumps(_make_record(self.path(entry), entry.sha256)), encoding="utf-8"
            )

    def unmark_verified(self, entry: CatalogueEntry) -> None:
        """Remove the record."""
        with contextlib.suppress(OSError):
            self.record_path(entry).unlink(missing_ok=True)


def ensure_verified(entry: CatalogueEntry, store: ModelStore, progress: Progress | None = None) -> Path:
    """Return the path of a pulled model, which is hashed only if it changed since the last time.

    Raises ModelUnavailable if it has not been pulled, CorruptModel if its SHA-256 is not the catalogue's.
    """
    if store.state(entry) != "verified":
        verify(entry, store, progress)
    return store.path(entry)


def verify(entry: CatalogueEntry, store: ModelStore, progress: Progress | None = None) -> Path:
    """Hash the file, whatever its record says, and return its path.

    Raises ModelUnavailable if it has not been pulled, CorruptModel if its size or SHA-256 is not the catalogue's.
    """
    path = store.path(entry)
    if not path.is_file():
        raise ModelUnavailable(f"{entry.name} is not on this machine: run `hunk models pull {entry.name}`")
    try:
        found = _compute_sha256(path, progress or SilentProgress())
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if found != entry.sha256:
        store.unmark_verified(entry)
        raise CorruptModel(
            f"{path} is damaged: its SHA-256 is {found}, not {entry.sha256}; "
            f"`hunk models pull {entry.name}` replaces it"
        )
    store.mark_verified(entry)
    return path


def _compute_sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file, progress.track("checking", path.stat().st_size):
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            progress.update(file.tell())
    return digest.hexdigest()


def _make_record(path: Path, sha256: str) -> dict[str, int | str]:
    stat = path.stat()
    return {"num_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256}


GGUF_MAGIC = b"GGUF"
INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model. `path` is the file of a `gguf` model, the folder of a `safetensors` model.

    `sha256` is only known for models of the catalogue. `prompt_form` is the name of the model's prompt form.
    """

    kind: Literal["gguf", "safetensors"]
    path: Path
    name: str
    sha256: str | None = None
    prompt_form: str = DEFAULT.name


def resolve(name_or_path: str, store: ModelStore, progress: Progress | None = None) -> ModelFiles:
    """Find the files of a model by its catalogue name, a name that the user added, or a path; downloads nothing.

    A catalogue model that changed since it was last hashed is hashed.

    Raises UnknownModel (no such name, file or folder), ModelUnavailable (not pulled, or an incomplete folder),
    CorruptModel (not a GGUF file, or not the catalogue's SHA-256).
    """
    if any(entry.name == name_or_path for entry in config.CATALOGUE):
        entry = config.find_entry(name_or_path)
        return ModelFiles("gguf", ensure_verified(entry, store, progress), entry.name, entry.sha256, entry.prompt_form)
    if (model := config.find_hub_model(name_or_path)) is not None:
        return find_folder(model, store)
    if (added := find_added(name_or_path, store.root)) is not None:
        found = _resolve_path(Path(added.path))
        if found is None:
            raise ModelUnavailable(
                f"the model {added.name} was added as {added.path}, which is gone; `hunk models add` names it anew"
            )
        return replace(found, name=added.name, prompt_form=added.prompt_form)
    path = Path(name_or_path).expanduser()
    found = _resolve_path(path)
    if found is None:
        raise UnknownModel(
            f"{name_or_path!r} is neither a model of `hunk models list` nor a file or folder here: "
            f"{config.suggest_names(path.name)}"
        )
    return found


def resolve_path(path: Path) -> ModelFiles:
    """Return the files of a GGUF file or a folder of safetensors.

    Raises UnknownModel if there is nothing, and else what `resolve` raises.
    """
    found = _resolve_path(path)
    if found is None:
        raise UnknownModel(f"there is no file or folder {path}; give a .gguf file, or a folder of safetensors")
    return found


def _resolve_path(path: Path) -> ModelFiles | None:
    try:
        if path.is_dir():
            return _resolve_folder(path)
        return _resolve_gguf(path) if path.is_file() else None
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error.strerror}") from error


def _resolve_gguf(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise CorruptModel(f"{path} is not a GGUF file: give a .gguf file, or the folder of a safetensors model")
    return ModelFiles("gguf", path.absolute(), path.stem)


def _resolve_folder(path: Path) -> ModelFiles:
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    missing += _find_missing_weights(path)
    if missing:
        raise ModelUnavailable(
            f"{path} lacks {', '.join(missing)}: a model's folder holds its config.json, its "
            "tokenizer.json and its .safetensors"
        )
    return ModelFiles("safetensors", path.absolute(), path.absolute().name)


def _find_missing_weights(folder: Path) -> list[str]:
    index = folder / INDEX_NAME
    if not index.is_file():
        return [] if any(folder.glob("*.safetensors")) else ["*.safetensors"]
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        return [name for name in shards if not (folder / name).is_file()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptModel(f"{index} is not an index of safetensors files ({error!r})") from error


RECORD = "files.json"
"""In the folder of a model of the hub: what was checked of its files."""


def get_folder_state(model: HubModel, store: ModelStore) -> DownloadState:
    """Return the state of a model; `verified` if all files have the sizes that were checked. Hashes nothing."""
    folder = store.folder(model)
    record = read_record(folder)
    if not record:
        return "partial" if folder.is_dir() else "absent"
    return "partial" if _list_wrong_sizes(folder, record) else "verified"


def find_folder(model: HubModel, store: ModelStore) -> ModelFiles:
    """Return the files of a pulled model; raises ModelUnavailable where some are missing."""
    if get_folder_state(model, store) != "verified":
        raise ModelUnavailable(f"{model.name} is not on this machine: run `hunk models pull {model.name}`")
    return ModelFiles("safetensors", store.folder(model), model.name, prompt_form=model.prompt_form)


def read_record(folder: Path) -> dict[str, Any]:
    """Return the size and the SHA-256 of each file that a pull has checked, by its name; nothing before that."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _list_wrong_sizes(folder: Path, record: dict[str, Any]) -> Sequence[str]:
    return [
        name
        for name, known in record.items()
        if not (folder / name).is_file() or (folder / name).stat().st_size != known.get("num_bytes")
    ]


KEY_BYTES = 32


def load_cache_key(cache_dir: Path) -> bytes:
    """Return the cache folder's key from `<cache>/key` (mode 0600), which is made if there is none.

    If it cannot be stored, or belongs to another user, a new key is returned; copies with another key are made again.
    """
    path, fresh = cache_dir / "key", secrets.token_bytes(KEY_BYTES)
    try:
        if not path.exists():
            cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_key(path, fresh)
        make_private_file(path)
        key = path.read_bytes()
        if len(key) != KEY_BYTES:
            path.unlink()
            _write_key(path, fresh)
            key = path.read_bytes()
    except OSError:
        return fresh
    return key


def _write_key(path: Path, key: bytes) -> None:
    """Write the key unless another process has just written one; raises OSError."""
    with write_temporary(path, key, sync=False) as temporary, contextlib.suppress(FileExistsError):
        os.link(temporary, path)


COPY_LAYOUT = 1
"""Increased when copies of an earlier version must not be used."""

SEAL = "seal.json"

BUILDING = ".building-"
ABANDONED_SECONDS = 3600
"""A temporary folder of this age belongs to a process that was killed."""

SPARE_BYTES = 1 << 30
"""Disk space that copies leave free."""


def locate_copy(files: ModelFiles, cache_dir: Path) -> Path:
    """Return the folder of the copy of a GGUF file; another or a changed file has another folder."""
    stat = files.path.stat()
    identity = files.sha256 or f"{files.path}:{stat.st_size}:{stat.st_mtime_ns}"
    key = blake2b(f"{COPY_LAYOUT}:{identity}".encode(), digest_size=16).hexdigest()
    return cache_dir / "converted" / key


def find_tensor_folder(files: ModelFiles, cache_dir: Path) -> Path:
    """Return the folder of a model's safetensors: its own, or that of its copy, which may not have been made yet."""
    return files.path if files.kind == "safetensors" else locate_copy(files, cache_dir)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def seal_copy(folder: Path, source: Path, source_sha256: str, key: bytes) -> None:
    """Write the seal of a copy: the hashes of its source and of its files; raises OSError."""
    files = {path.name: [hash_file(path), *_read_stamp(path)] for path in sorted(folder.iterdir())}
    content = json.dumps({"source": [source_sha256, *_read_stamp(source)], "files": files})
    (folder / SEAL).write_text(json.dumps({"content": content, "mac": _sign(content, key)}), encoding="ascii")


def is_sealed(folder: Path, files: ModelFiles, key: bytes, *, hash_all: bool = False) -> bool:
    """Return whether a copy matches its seal; `hash_all` hashes all bytes, even if sizes and times match."""
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
    """Return the folder of a GGUF file's copy, None if there is none or it does not match its seal; raises OSError."""
    place = locate_copy(files, cache_dir)
    return place if place.is_dir() and is_sealed(place, files, load_cache_key(cache_dir)) else None


def remove_damaged_copy(files: ModelFiles, cache_dir: Path) -> bool:
    """Hash a GGUF file's copy, and remove it if it does not match its seal; returns whether it was removed."""
    if files.kind != "gguf" or not (place := locate_copy(files, cache_dir)).is_dir():
        return False
    if is_sealed(place, files, load_cache_key(cache_dir), hash_all=True):
        return False
    shutil.rmtree(place, ignore_errors=True)
    return True


def remove_model(entry: CatalogueEntry | HubModel, store: ModelStore) -> int:
    """Remove a pulled model, an interrupted pull of it, and its converted copy; return the bytes that this frees."""
    folder, freed = store.folder(entry), 0
    if isinstance(entry, CatalogueEntry) and store.path(entry).is_file():
        freed += remove_copy(ModelFiles("gguf", store.path(entry), entry.name, entry.sha256), store.root)
    freed += _remove_folder(folder)
    return freed


def remove_copy(files: ModelFiles, cache_dir: Path) -> int:
    """Remove the converted copy of a GGUF file; return the bytes that this frees."""
    return _remove_folder(locate_copy(files, cache_dir)) if files.kind == "gguf" else 0


def _remove_folder(folder: Path) -> int:
    freed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    return freed


def _read_stamp(path: Path) -> list[int]:
    """Return size, times and inode of a file: any write changes them, since only root can set the ctime."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _sign(content: str, key: bytes) -> str:
    return hmac.new(key, content.encode(), sha256).hexdigest()


def save_copy(place: Path, num_bytes: int, write: Callable[[Path], None]) -> None:
    """Have `write` fill a temporary folder, and rename it to `place`. Does nothing if the disk is full or read-only."""
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
    """Write the chat template and the names of the control tokens into a model folder."""
    config = {"chat_template": chat_template, "eos_token": eos_token, "bos_token": bos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
