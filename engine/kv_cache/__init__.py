"""Pages of the KV pool: page tables, the prefix cache, eviction. Needs no torch."""

from engine.kv_cache.block_manager import KVPages
from engine.kv_cache.page_pool import PoolStats, page_runs
from engine.kv_cache.prefix_cache import NO_PAGE, PageCopy, root_key

__all__ = ["NO_PAGE", "KVPages", "PageCopy", "PoolStats", "page_runs", "root_key"]
