"""From what a user calls a model - a catalogue name, a .gguf file, a folder - to files that can be loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_runtime.errors import CorruptModel, ModelUnavailable, UnknownModel
from agent_runtime.models import catalogue
from agent_runtime.models.progress import Progress
from agent_runtime.models.store import Store, ready
from agent_runtime.prompt import DEFAULT

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


def resolve(name_or_path: str, store: Store, progress: Progress | None = None) -> ModelFiles:
    """The files of a model. Downloads nothing; a catalogue model that changed since it was last hashed is hashed.

    Raises UnknownModel (no such name, file or folder), ModelUnavailable (a catalogue model that is not pulled, or a
    folder that lacks something), CorruptModel (not a GGUF file, or not the catalogue's SHA-256).
    """
    if any(entry.name == name_or_path for entry in catalogue.CATALOGUE):
        entry = catalogue.find(name_or_path)
        return ModelFiles("gguf", ready(entry, store, progress), entry.name, entry.sha256, entry.prompt_form)
    path = Path(name_or_path).expanduser()
    try:
        if path.is_dir():
            return _folder(path)
        if path.is_file():
            return _gguf(path)
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error.strerror}") from error
    raise UnknownModel(
        f"{name_or_path!r} is neither a model of the catalogue nor a file or folder here: {catalogue.hint(path.name)}"
    )


def _gguf(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise CorruptModel(f"{path} is not a GGUF file: give a .gguf file, or the folder of a safetensors model")
    return ModelFiles("gguf", path.absolute(), path.stem)


def _folder(path: Path) -> ModelFiles:
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    missing += _missing_weights(path)
    if missing:
        raise ModelUnavailable(
            f"{path} lacks {', '.join(missing)}: a model's folder holds its config.json, its "
            "tokenizer.json and its .safetensors"
        )
    return ModelFiles("safetensors", path.absolute(), path.absolute().name)


def _missing_weights(folder: Path) -> list[str]:
    index = folder / INDEX_NAME
    if not index.is_file():
        return [] if any(folder.glob("*.safetensors")) else ["*.safetensors"]
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        return [name for name in shards if not (folder / name).is_file()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptModel(f"{index} is not an index of safetensors files ({error!r})") from error
