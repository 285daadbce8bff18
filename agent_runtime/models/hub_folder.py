"""Models that are a folder of safetensors on the Hugging Face hub: `<root>/models/<name>/`, as the hub has it.

The hub tells the size and the SHA-256 of each large file, and the git hash of each small one; `files.json` in the
folder keeps what was checked. A large file continues where an earlier pull stopped.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any

import httpx

from agent_runtime.errors import CorruptModel, DownloadFailed
from agent_runtime.files import replace_file
from agent_runtime.models.config import CatalogueEntry, HubModel
from agent_runtime.models.download import MARGIN_BYTES, PullResult, pull, translate_disk_errors
from agent_runtime.models.progress import Progress, SilentProgress
from agent_runtime.models.sources import TIMEOUT, HubSource, SourceError, translate_http_errors
from agent_runtime.models.store import RECORD, ModelStore, find_folder, hash_file, read_record

WANTED = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    *("model.safetensors.index.json", "*.safetensors"),
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: `sha256` of a large one, `git_sha1` of a small one, which git holds itself."""

    name: str
    num_bytes: int
    sha256: str | None
    git_sha1: str


def list_files(model: HubModel, source: HubSource) -> list[HubFile]:
    """Ask the hub for the files of a model; raises DownloadFailed."""
    try:
        answer = _get(source, f"api/models/{model.hub_repo}?blobs=true", model.hub_repo)
        files = [
            HubFile(each["rfilename"], each["size"], (each.get("lfs") or {}).get("sha256"), each["blobId"])
            for each in json.loads(answer)["siblings"]
            if _is_wanted(each["rfilename"])
        ]
    except SourceError as error:
        raise DownloadFailed(f"{model.name} cannot be had: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadFailed(f"{model.name} cannot be had: the hub lists its files in another way ({error})") from error
    if not any(each.name.endswith(".safetensors") for each in files):
        raise DownloadFailed(f"{model.hub_repo} on the hub holds no safetensors")
    return files


def _is_wanted(name: str) -> bool:
    """Return whether a file belongs to a model's folder itself: a name with a path could lie anywhere."""
    return Path(name).name == name and "\\" not in name and any(fnmatch(name, pattern) for pattern in WANTED)


def pull_folder(
    model: HubModel, store: ModelStore, progress: Progress | None = None, source: HubSource | None = None
) -> PullResult:
    """Download what is missing of a model, and check it; raises as `download.pull` does."""
    source, progress = source or HubSource(), progress or SilentProgress()
    with translate_disk_errors(model, store):
        return _pull_files(model, list_files(model, source), store, progress, source)


def _pull_files(
    model: HubModel, files: list[HubFile], store: ModelStore, progress: Progress, source: HubSource
) -> PullResult:
    folder, fetched = store.folder(model), 0
    missing = sum(each.num_bytes for each in files if not (folder / each.name).is_file())
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < missing + MARGIN_BYTES:
        raise DownloadFailed(
            f"no room for {model.name} in {folder}: {missing / 1e6:,.0f} MB are needed; free some, or point HUNK_CACHE "
            "to another disk"
        )
    record: dict[str, Any] = {}
    for file in files:
        if file.sha256 is None:
            digest, num_bytes = _pull_small(model, file, folder, source)
        else:
            entry = _make_entry(model, file, file.sha256)
            digest, num_bytes = file.sha256, pull(entry, store, (source,), progress).fetched_bytes
        fetched += num_bytes
        record[file.name] = {"num_bytes": file.num_bytes, "sha256": digest}
    replace_file(folder / RECORD, json.dumps(record, indent=2).encode())
    return PullResult(folder, fetched, (source.name,) if fetched else ())


def _make_entry(model: HubModel, file: HubFile, digest: str) -> CatalogueEntry:
    return CatalogueEntry(
        name=model.name,
        title=model.title,
        use=model.use,
        licence=model.licence,
        file_name=file.name,
        num_bytes=file.num_bytes,
        sha256=digest,
        hub_repo=model.hub_repo,
        registry_parts=(),
        part_bytes=0,
    )


def _pull_small(model: HubModel, file: HubFile, folder: Path, source: HubSource) -> tuple[str, int]:
    """Return the SHA-256 of a file that git holds, and the bytes that were fetched."""
    path = folder / file.name
    if path.is_file() and _compute_git_sha1(content := path.read_bytes()) == file.git_sha1:
        return sha256(content).hexdigest(), 0
    try:
        content = _get(source, "", model.hub_repo, file.name)
    except SourceError as error:
        raise DownloadFailed(f"{model.name} cannot be had: {file.name}: {error}") from error
    if _compute_git_sha1(content) != file.git_sha1:
        raise CorruptModel(f"the hub gave another {file.name} for {model.name} than it has: pull again")
    replace_file(path, content)
    return sha256(content).hexdigest(), len(content)


def _get(source: HubSource, path: str, repo: str, file_name: str = "config.json") -> bytes:
    """Return a small file of a repository, or what the hub answers at `path`; raises SourceError."""
    url, headers = source.locate(repo, file_name)
    if path:
        url = url.partition(f"/{repo}/")[0] + f"/{path}"
    with translate_http_errors():
        return httpx.get(url, headers=headers, follow_redirects=True, timeout=TIMEOUT).raise_for_status().content


def _compute_git_sha1(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def verify_folder(model: HubModel, store: ModelStore, progress: Progress) -> None:
    """Hash every file; raises ModelUnavailable if the model was not pulled, CorruptModel if one is not the hub's."""
    find_folder(model, store)
    folder, hashed = store.folder(model), 0
    record = read_record(folder)
    with progress.track("checking", sum(known["num_bytes"] for known in record.values())):
        for name, known in record.items():
            digest, hashed = hash_file(folder / name), hashed + known["num_bytes"]
            progress.update(hashed)
            if digest == known["sha256"]:
                continue
            (folder / name).unlink()
            raise CorruptModel(
                f"{folder / name} was damaged and is removed; `hunk models pull {model.name}` replaces it"
            )


def describe_memory(model: HubModel) -> str:
    """Return what a model's weights and keys and values take in memory, computed from its shape."""
    try:
        import torch

        from engine.families import parse_config
        from engine.weights.memory import count_kv_bytes, estimate_weight_bytes
    except ModuleNotFoundError:
        return f"{model.name}: {model.num_bytes / 1e9:.1f} GB"
    shape, dtype = parse_config(model.shape), torch.bfloat16
    sizes = [
        f"{estimate_weight_bytes(shape, dtype, scheme) / 1e9:.1f} GB in {scheme or 'bfloat16'}"
        for scheme in (None, "int8")
    ]
    return (
        f"{model.name} takes {', '.join(sizes)} for its weights, and {count_kv_bytes(shape, dtype) / 1e3:.0f} MB for "
        "the keys and values of 1,000 tokens"
    )
