"""Which pages of the KV pool hold which tokens: page tables, the prefix cache, eviction. Knows no tensors."""

from engine.paging.keys import root_key
from engine.paging.page import NO_PAGE, PageCopy
from engine.paging.pages import KVPages
from engine.paging.runs import page_runs
from engine.paging.stats import PoolStats

__all__ = ["NO_PAGE", "KVPages", "PageCopy", "PoolStats", "page_runs", "root_key"]
