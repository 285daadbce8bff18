"""Files of models on this machine, found by catalogue name, path or .gguf file.

<root>/models/<name>/<file>.gguf           the model, complete
                     <file>.gguf.partial   a pull that was broken off, to be continued
                     <file>.gguf.json      size, time of change and SHA-256 when it was last hashed
                     .lock, .fetch-*       of a running pull
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_runtime.errors import CorruptModel, ModelUnavailable, UnknownModel
from agent_runtime.models import catalogue
from agent_runtime.models.catalogue import CatalogueEntry
from agent_runtime.models.progress import Progress, SilentProgress
from agent_runtime.prompt import DEFAULT

CHUNK_BYTES = 1 << 20

DownloadState = Literal["absent", "partial", "present", "verified"]


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The folder of models under `root`, which need not exist yet."""

    root: Path

    def folder(self, entry: CatalogueEntry) -> Path:
        """The model's own folder."""
        return self.root / "models" / entry.name

    def path(self, entry: CatalogueEntry) -> Path:
        """Path of the model's file, whether it exists or not."""
        return self.folder(entry) / entry.file_name

    def partial_path(self, entry: CatalogueEntry) -> Path:
        """Path of the first bytes of the file during a pull, and after an interrupted one."""
        return self.path(entry).with_name(entry.file_name + ".partial")

    def record_path(self, entry: CatalogueEntry) -> Path:
        """Path of the note that describes the file when it was last hashed."""
        return self.path(entry).with_name(entry.file_name + ".json")

    def state(self, entry: CatalogueEntry) -> DownloadState:
        """`verified` if the file was hashed, rightly, and has not been touched since; hashes nothing itself."""
        path = self.path(entry)
        if not path.is_file():
            return "partial" if self.partial_path(entry).is_file() else "absent"
        try:
            record = json.loads(self.record_path(entry).read_bytes())
        except (OSError, ValueError):
            return "present"
        return "verified" if record == _make_record(path, entry.sha256) else "present"

    def mark_verified(self, entry: CatalogueEntry) -> None:
        """Notes that the file, as it is now, has the right SHA-256. A cache that is read-only goes without the note."""
        with contextlib.suppress(OSError):
            self.record_path(entry).write_text(
                json.dumps(_make_record(self.path(entry), entry.sha256)), encoding="utf-8"
            )

    def unmark_verified(self, entry: CatalogueEntry) -> None:
        """Takes the note back."""
        with contextlib.suppress(OSError):
            self.record_path(entry).unlink(missing_ok=True)


def ensure_verified(entry: CatalogueEntry, store: ModelStore, progress: Progress | None = None) -> Path:
    """The path of a pulled model, hashed only if it changed since it was last hashed.

    Raises ModelUnavailable if it has not been pulled, CorruptModel if its SHA-256 is not the catalogue's.
    """
    if store.state(entry) != "verified":
        verify(entry, store, progress)
    return store.path(entry)


def verify(entry: CatalogueEntry, store: ModelStore, progress: Progress | None = None) -> Path:
    """Hashes the file, whatever is noted about it, and answers its path.

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
    """`path` is the file for `gguf`, the folder for `safetensors`; `sha256` is known for catalogue models only.

    `prompt_form` names the form in which the model is asked.
    """

    kind: Literal["gguf", "safetensors"]
    path: Path
    name: str
    sha256: str | None = None
    prompt_form: str = DEFAULT.name


def resolve(name_or_path: str, store: ModelStore, progress: Progress | None = None) -> ModelFiles:
    """The files of a model. Downloads nothing; a catalogue model that changed since it was last hashed is hashed.

    Raises UnknownModel (no such name, file or folder), ModelUnavailable (a catalogue model that is not pulled, or a
    folder that lacks something), CorruptModel (not a GGUF file, or not the catalogue's SHA-256).
    """
    if any(entry.name == name_or_path for entry in catalogue.CATALOGUE):
        entry = catalogue.find_entry(name_or_path)
        return ModelFiles("gguf", ensure_verified(entry, store, progress), entry.name, entry.sha256, entry.prompt_form)
    path = Path(name_or_path).expanduser()
    try:
        if path.is_dir():
            return _resolve_folder(path)
        if path.is_file():
            return _resolve_gguf(path)
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error.strerror}") from error
    suggestion = catalogue.suggest_names(path.name)
    raise UnknownModel(f"{name_or_path!r} is neither a model of the catalogue nor a file or folder here: {suggestion}")


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
