"""The text side of a model: its tokenizer, its chat template and the tokens that end a turn."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runtime.errors import CorruptModel
from agent_runtime.prompt import DEFAULT, PromptForm
from agent_runtime.prompt.chat_template import ChatTemplate
from engine.weights.gguf import GGUFModel
from repo_cache.tokenizer import BPETokenizer, GGUFVocabulary

TURN_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")
"""Control tokens that end a turn in the supported families, whether or not the metadata name them."""


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    """What turns messages into token ids and ids into text, and the form of prompt that the model follows best."""

    tokenizer: BPETokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]
    form: PromptForm = DEFAULT


@dataclass(frozen=True, slots=True)
class TextMetadata:
    """What a model's files say of its chat template and its control tokens."""

    chat_template: str
    eos_token: str
    bos_token: str

    def to_bundle(self, tokenizer: BPETokenizer) -> TokenizerBundle:
        """The text side, with everything that ends a turn."""
        named = {tokenizer.control_id(token) for token in (self.eos_token, *TURN_ENDS)}
        return TokenizerBundle(
            tokenizer,
            ChatTemplate(self.chat_template, bos_token=self.bos_token, eos_token=self.eos_token),
            frozenset(number for number in named if number is not None),
        )


def read_gguf_tokenizer(model: GGUFModel) -> tuple[BPETokenizer, TextMetadata]:
    """Tokenizer and metadata of an open GGUF file; raises CorruptModel where they are missing."""
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
    """Tokenizer and metadata of a model folder; raises CorruptModel where they are missing."""
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    config = _read_tokenizer_config(folder / "tokenizer_config.json")
    separate = folder / "chat_template.jinja"
    template = separate.read_text(encoding="utf-8") if separate.is_file() else config.get("chat_template")
    if not isinstance(template, str):
        raise CorruptModel(
            f"{folder} has no chat template (chat_template.jinja, or in tokenizer_config.json); "
            "take an instruction-tuned model"
        )
    metadata = TextMetadata(
        template,
        eos_token=_parse_token_name(config.get("eos_token")),
        bos_token=_parse_token_name(config.get("bos_token")),
    )
    return tokenizer, metadata


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    """The file's object; a folder may go without one."""
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
    """A token in `tokenizer_config.json` is a string, an object with `content`, or null."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
