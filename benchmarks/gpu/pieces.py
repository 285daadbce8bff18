"""Makes token ids of texts where no model's tokenizer is at hand: about as many as one would make of code."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Protocol

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from repo_cache.tokenizer import BPETokenizer

TOKENIZER = "qwen2.5-coder-0.5b"
"""All Qwen2.5 models have the same."""

PIECES = re.compile(rb"\s*\n|[^\S\n]+(?=[^\S\n])|[^\S\n]?\w{1,7}|[^\S\n]?[^\w\s]{1,3}|[^\S\n]")
"""Blank line ends, indentation, words and signs with the blank before them: what byte-level BPE splits a text into
first, words cut where they are long."""


class TextTokens(Protocol):
    """What edits are encoded with."""

    def encode(self, text: str) -> list[int]:
        """Its token ids."""
        ...

    def token_bytes(self) -> Sequence[bytes]:
        """What each token id stands for."""
        ...


class Pieces:
    """Gives each new piece of text the next id."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}

    def encode(self, text: str) -> list[int]:
        """The text's pieces; joined, they are the text."""
        data = text.encode()
        found = PIECES.findall(data)
        assert b"".join(found) == data, "pieces have lost a part of the text"
        return [self._ids.setdefault(piece, len(self._ids)) for piece in found]

    def token_bytes(self) -> list[bytes]:
        """The pieces so far."""
        return list(self._ids)


def tokens_at_hand() -> tuple[TextTokens, str]:
    """The models' own tokenizer if it was downloaded, and what to say of it."""
    try:
        return _tokenizer(), f"tokenizer of {TOKENIZER}"
    except HunkError:
        return Pieces(), f"no tokenizer at hand ({TOKENIZER} was not downloaded): texts are cut by a rule"


def _tokenizer() -> BPETokenizer:
    from agent_runtime.models.tokenizer import read_folder_tokenizer, read_gguf_tokenizer
    from engine.weights.gguf import GGUFModel

    files = resolve(TOKENIZER, ModelStore(ModelSettings.from_env(os.environ).cache_dir))
    return (read_gguf_tokenizer(GGUFModel(files.path)) if files.kind == "gguf" else read_folder_tokenizer(files.path))[
        0
    ]
