"""The span store: KV of earlier prompts' and outputs' tokens by their content, in memory and in slower tiers."""

from engine.reuse.store.index import SpanIndex
from engine.reuse.store.stats import SpanStats
from engine.reuse.store.store import SpanStore

__all__ = ["SpanIndex", "SpanStats", "SpanStore"]
