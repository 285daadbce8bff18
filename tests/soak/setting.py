"""The engine that is soaked: little room, so that requests wait, lose their pages and push others from the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from benchmarks.engine.workload import read_source_text
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.scheduler import SchedulerConfig
from engine.weights import load
from repo_cache.tokenizer import BPETokenizer, GGUFVocabulary
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_decoder

TINY = "tiny"


@dataclass(frozen=True)
class Setting:
    """An engine, the text that prompts are cut from, and the mean pause of a caller between two requests."""

    engine: Engine
    text_ids: Sequence[int]
    stop_bytes: tuple[bytes, ...]
    pause_s: float


def setting(model: str) -> Setting:
    """A random model of two layers, or one of the catalogue in float32: equal results are equal to the token."""
    return _tiny() if model == TINY else _real(model)


def _tiny() -> Setting:
    limits = SchedulerConfig(
        max_batched_tokens=48, prefill_beside_decodes=16, max_num_seqs=6, max_waiting=8, aging_s=0.1
    )
    engine = _engine(tiny_decoder(), TOKEN_BYTES, max_seq_len=160, page_size=4, num_pages=60, limits=limits)
    text_ids = [(number * number + number // 7) % VOCAB_SIZE for number in range(5000)]
    return Setting(engine, text_ids, (b"</x>", b"word"), pause_s=0.002)


def _real(name: str) -> Setting:
    from engine.weights.gguf import GGUFModel

    gguf = GGUFModel(resolve(name, ModelStore(ModelSettings.from_env(os.environ).cache_dir)).path)
    tokens, kinds, merges, pre = (
        gguf.metadata(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges", "pre")
    )
    tokenizer = BPETokenizer.from_gguf(GGUFVocabulary(tokens, kinds, merges, pre))
    limits = SchedulerConfig(
        max_batched_tokens=256, prefill_beside_decodes=64, max_num_seqs=6, max_waiting=8, aging_s=5.0
    )
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    decoder = Decoder(load(gguf, torch.float32))
    engine = _engine(decoder, tokenizer.token_bytes(), max_seq_len=768, page_size=16, num_pages=80, limits=limits)
    return Setting(engine, tokenizer.encode(read_source_text()), (b"\n\n\n", b"return"), pause_s=0.5)


def _engine(
    decoder: Decoder,
    token_bytes: Sequence[bytes],
    *,
    max_seq_len: int,
    page_size: int,
    num_pages: int,
    limits: SchedulerConfig,
) -> Engine:
    kv_bytes = num_pages * page_bytes(decoder.config, page_size, decoder.weights.dtype)
    return Engine(decoder, token_bytes, EngineConfig(max_seq_len, kv_bytes, page_size, limits, check_integrity=True))
