"""The tokenizer of a model, without the model."""

from __future__ import annotations

from pathlib import Path

from agent_runtime.errors import CorruptModel, ModelUnavailable
from agent_runtime.models.bf16_copy import find_copy
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from repo_cache.errors import TokenizerError
from repo_cache.tokenizer import BPETokenizer


def open_tokenizer(name_or_path: str, settings: ModelSettings) -> BPETokenizer:
    """The tokenizer of a model by its catalogue name or path, or of a `tokenizer.json`, or of a folder that has one.

    Raises UnknownModel, ModelUnavailable (not pulled), CorruptModel (damaged, or of an unsupported kind).
    """
    path = Path(name_or_path).expanduser()
    try:
        if path.name == "tokenizer.json" and path.is_file():
            return BPETokenizer.from_file(path)
        if (path / "tokenizer.json").is_file():
            return BPETokenizer.from_file(path / "tokenizer.json")
        files = resolve(name_or_path, ModelStore(settings.cache_dir))
        folder = files.path if files.kind == "safetensors" else find_copy(files, settings.cache_dir)
        if folder is not None and (folder / "tokenizer.json").is_file():
            return BPETokenizer.from_file(folder / "tokenizer.json")
        return _open_gguf_tokenizer(files.path)
    except TokenizerError as error:
        raise CorruptModel(f"the tokenizer of {name_or_path} cannot be loaded: {error}") from error
    except OSError as error:
        raise ModelUnavailable(f"{error.filename or path} cannot be read: {error.strerror}") from error


def _open_gguf_tokenizer(path: Path) -> BPETokenizer:
    from agent_runtime.models.text_side import read_gguf_tokenizer  # torch takes a second to import
    from engine.errors import WeightsError
    from engine.weights.gguf import GGUFModel

    try:
        return read_gguf_tokenizer(GGUFModel(path))[0]
    except WeightsError as error:
        raise CorruptModel(str(error)) from error
