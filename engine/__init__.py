"""Runs decoder language models for many callers at once: token ids in, token ids out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.classic import ContinuousBatchingEngine, merge_lora
    from engine.contiguous_cache import KVCache, reset_all_caches
    from engine.decoder import Decoder
    from engine.engine import Engine, EngineStats
    from engine.engine_config import EngineConfig
    from engine.scheduler import SchedulerConfig
    from engine.types import GenerationRequest, GenerationResult, GenerationStep

__all__ = [
    "ContinuousBatchingEngine",
    "Decoder",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "GenerationRequest",
    "GenerationResult",
    "GenerationStep",
    "KVCache",
    "SchedulerConfig",
    "merge_lora",
    "reset_all_caches",
]

_HOMES = {
    "ContinuousBatchingEngine": ".classic",
    "Decoder": ".decoder",
    "Engine": ".engine",
    "EngineConfig": ".engine_config",
    "EngineStats": ".engine",
    "GenerationRequest": ".types",
    "GenerationResult": ".types",
    "GenerationStep": ".types",
    "KVCache": ".contiguous_cache",
    "SchedulerConfig": ".scheduler",
    "merge_lora": ".classic",
    "reset_all_caches": ".contiguous_cache",
}
"""Imported when they are asked for: torch takes a second, and errors, types and scheduling do without it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
