"""The span store: KV of earlier prompts' and outputs' tokens by their content, in memory and in a tier behind it."""

from engine.reuse.store.disk import DiskTier
from engine.reuse.store.index import SpanIndex
from engine.reuse.store.stats import SpanStats
from engine.reuse.store.store import SpanStore
from engine.reuse.store.tier import KVTier, SpanHeader

__all__ = ["DiskTier", "KVTier", "SpanHeader", "SpanIndex", "SpanStats", "SpanStore"]
