"""What lies behind the store's memory: a slower place for entries that had to leave it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SpanHeader:
    """What an entry is: all that its KV depends on, beside the model's fingerprint.

    root: the digest of the root, in which no tenant's salt can be read. record, start: the prompt that it was computed
    in, and where it stood there; with them, no two entries are the same. dtype: torch's name of it, without `torch.`.
    num_layers, num_kv_heads, head_dim: the KV is [2 (keys before RoPE, values), num_layers, num_tokens, num_kv_heads,
    head_dim]. token_ids: as little-endian uint32.
    """

    root: bytes
    record: int
    start: int
    generation: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    token_ids: bytes
    num_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the entry."""
        return len(self.token_ids) // 4


class KVTier(Protocol):
    """A place that keeps entries' KV for a while, up to `capacity_bytes` of them. None of its methods raises.

    It may forget an entry at any time. `get` and `put` are called from different threads.
    """

    @property
    def capacity_bytes(self) -> int:
        """How much it keeps."""

    def put(self, header: SpanHeader, payload: memoryview) -> bool:
        """Keep an entry's KV, the bytes of its tensor; False: that could not be done."""

    def get(self, header: SpanHeader) -> memoryview | None:
        """The KV of the entry that has exactly this header; None: it is not there, or not as it was put."""

    def headers(self) -> Iterable[SpanHeader]:
        """What it keeps of this model, the least recently used first."""
