"""The keys of the prefix cache: a hash chain over token ids that starts from all that KV depends on beside the ids."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16


def root_key(fingerprint: bytes, salt: str, adapter: str | None) -> bytes:
    """What a chain starts from; sequences share KV only under equal roots.

    fingerprint: of the model (weights, config, RoPE, dtype). salt: one a tenant. adapter: the LoRA adapter, None for
    the bare model (which is not the adapter named ""). Every field goes in behind its length, so no two triples have
    the same bytes, ("ab", "c") is not ("a", "bc"), and none begins with another's. Not hashed, so tenants cannot
    collide at all.
    """
    fields = [fingerprint, salt.encode("utf-8", "surrogatepass")]
    if adapter is not None:
        fields.append(adapter.encode("utf-8", "surrogatepass"))
    return struct.pack("<B", len(fields)) + b"".join(struct.pack("<Q", len(field)) + field for field in fields)


def page_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a page: blake2b-128 over the key of the page before it and its ids as little-endian uint32.

    It depends on all tokens up to the page's last. Token ids must lie in [0, 2**32): struct.error otherwise.
    """
    return blake2b(parent + struct.pack(f"<{len(token_ids)}I", *token_ids), digest_size=KEY_BYTES).digest()
