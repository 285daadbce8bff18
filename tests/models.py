"""The catalogue's models as the tests use them: files that `make test` has pulled, each opened once a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import gguf
import pytest

from agent_runtime.errors import ModelUnavailable
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from engine.weights.gguf import GGUFModel
from repo_cache.tokenizer import BPETokenizer, GGUFVocabulary

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Texts that lie beside the checkout on the project's machines."""


@dataclass(frozen=True)
class RealModel:
    """One model of the catalogue."""

    name: str
    path: Path

    @cached_property
    def gguf(self) -> GGUFModel:
        """The open file."""
        return GGUFModel(self.path)

    @cached_property
    def vocabulary(self) -> GGUFVocabulary:
        """What the file says of its tokenizer."""
        tokens, kinds, merges, pre = (
            self.gguf.metadata(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges", "pre")
        )
        return GGUFVocabulary(tokens, kinds, merges, pre)

    @cached_property
    def tokenizer(self) -> BPETokenizer:
        """Our tokenizer."""
        return BPETokenizer.from_gguf(self.vocabulary)

    @property
    def chat_template(self) -> str:
        """The Jinja source."""
        source = self.gguf.metadata("tokenizer.chat_template")
        assert isinstance(source, str)
        return source


@cache
def real_model(name: str) -> RealModel:
    """The model of that name; the test fails, rather than being skipped, where it has not been pulled."""
    try:
        files = resolve(name, ModelStore(ModelSettings.from_env(os.environ).cache_dir))
    except ModelUnavailable as error:
        pytest.fail(f"this test needs {name}: run `hunk models pull {name}` ({error})", pytrace=False)
    return RealModel(name, files.path)


def share_gguf_readers(patch: pytest.MonkeyPatch) -> None:
    """Let transformers read the file that is open already: parsing a vocabulary of 150,000 takes seconds."""
    opened: dict[str, gguf.GGUFReader] = {}
    real_reader = gguf.GGUFReader

    def reader(path: os.PathLike[str] | str) -> gguf.GGUFReader:
        key = os.fspath(path)
        if key not in opened:
            opened[key] = real_reader(path)
        return opened[key]

    patch.setattr("gguf.GGUFReader", reader)
    patch.setattr("engine.weights.gguf.GGUFReader", reader)
