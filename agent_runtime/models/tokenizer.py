"""Reads a model's tokenizer, chat template and end-of-turn tokens, without its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_runtime.errors import CorruptModel, ModelUnavailable
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, find_copy, resolve
from agent_runtime.prompt.chat_template import ChatTemplate
from agent_runtime.prompt.forms import DEFAULT, PromptForm
from repo_cache.errors import TokenizerError
from repo_cache.tokenizer import BPETokenizer, GGUFVocabulary

if TYPE_CHECKING:  # imports torch, which takes a second
    from engine.weights.gguf import GGUFModel

TURN_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|end|>")
"""Control tokens that end a turn in the supported families, whether or not the metadata name them."""


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    """A model's tokenizer, chat template and stop tokens, and its prompt form."""

    tokenizer: BPETokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]
    form: PromptForm = DEFAULT


@dataclass(frozen=True, slots=True)
class TextMetadata:
    """The chat template and the names of control tokens, from a model's files."""

    chat_template: str
    eos_token: str
    bos_token: str

    def to_bundle(self, tokenizer: BPETokenizer) -> TokenizerBundle:
        """Combine with the tokenizer; all tokens that end a turn become stop ids."""
        named = {tokenizer.get_control_id(token) for token in (self.eos_token, *TURN_ENDS)}
        return TokenizerBundle(
            tokenizer,
            ChatTemplate(self.chat_template, bos_token=self.bos_token, eos_token=self.eos_token),
            frozenset(number for number in named if number is not None),
        )


def open_tokenizer(name_or_path: str, settings: ModelSettings) -> BPETokenizer:
    """Open the tokenizer of a model, given its catalogue name or path, a `tokenizer.json`, or a folder with one.

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


def read_gguf_tokenizer(model: GGUFModel) -> tuple[BPETokenizer, TextMetadata]:
    """Read tokenizer and metadata of an open GGUF file; raises CorruptModel if they are missing."""
    values = {name: model.metadata(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "merges", "pre")}
    missing = sorted(name for name, value in values.items() if value is None)
    template = model.metadata("tokenizer.chat_template")
    if missing or template is None:
        what = f"tokenizer.ggml.{missing[0]}" if missing else "tokenizer.chat_template"
        raise CorruptModel(f"the GGUF file has no {what}; take an instruction-tuned model with a byte-level BPE")
    tokenizer = BPETokenizer.from_gguf(
        GGUFVocabulary(values["tokens"], values["token_type"], values["merges"], values["pre"])
    )
    names = {
        kind: _get_token(values["tokens"], model.metadata(f"tokenizer.ggml.{kind}_token_id")) for kind in ("eos", "bos")
    }
    return tokenizer, TextMetadata(template, eos_token=names["eos"], bos_token=names["bos"])


def read_folder_tokenizer(folder: Path) -> tuple[BPETokenizer, TextMetadata]:
    """Read tokenizer and metadata of a model folder; raises CorruptModel if they are missing."""
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    config = _read_tokenizer_config(folder / "tokenizer_config.json")
    separate = folder / "chat_template.jinja"
    template = separate.read_text(encoding="utf-8") if separate.is_file() else config.get("chat_template")
    if not isinstance(template, str):
        raise CorruptModel(
            f"{folder} has no chat template (chat_template.jinja, or in tokenizer_config.json); "
            "take an instruction-tuned model"
        )
    eos_token, bos_token = (_parse_token_name(config.get(name)) for name in ("eos_token", "bos_token"))
    return tokenizer, TextMetadata(template, eos_token=eos_token, bos_token=bos_token)


def _open_gguf_tokenizer(path: Path) -> BPETokenizer:
    from engine.errors import WeightsError
    from engine.weights.gguf import GGUFModel  # imports torch

    try:
        return read_gguf_tokenizer(GGUFModel(path))[0]
    except WeightsError as error:
        raise CorruptModel(str(error)) from error


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Return the file's JSON object, {} if there is no file; raises CorruptModel."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptModel(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise CorruptModel(f"{path} is not a JSON object")
    return config


def _get_token(tokens: list[str], token_id: int | None) -> str:
    return tokens[token_id] if token_id is not None and 0 <= token_id < len(tokens) else ""


def _parse_token_name(value: Any) -> str:
    """Return a token of `tokenizer_config.json`, which is a string, an object with `content`, or null."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
