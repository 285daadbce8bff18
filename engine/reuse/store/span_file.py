"""An entry as the bytes of a file: a header that says what it is, its KV, and checksums over both.

    magic, version, length of the header, length of the payload | fingerprint | what `SpanHeader` has | token ids
    | digest of all behind the header | digest of the header | zeros up to a multiple of `ALIGNMENT` | payload

A digest is an HMAC with the folder's key: who can write there and does not have the key can plant no KV.
All numbers are little-endian. The payload begins at a multiple of a memory page, so that a file can be mapped.
"""

from __future__ import annotations

import hmac
import struct
from hashlib import blake2b, sha256
from hmac import compare_digest

from engine.reuse.store.tier import SpanHeader

MAGIC = b"HUNKSPAN"

VERSION = 2

ALIGNMENT = 4096

DIGEST_BYTES = 32
"""SHA-256, which processors have an instruction for: 1.8 GB/s, blake2b 0.6."""

_PREAMBLE = struct.Struct("<8sIIQ")
_FIELDS = struct.Struct("<32s32sQQIIIII16s")


class NotThisSpan(Exception):
    """The bytes are damaged, or those of another model, entry or version of this format; the message says which."""


def encode_head(header: SpanHeader, fingerprint: bytes, payload: memoryview, key: bytes) -> bytes:
    """What stands before the payload. fingerprint: of the model."""
    assert len(payload) == header.num_bytes, "the payload is not the header's"
    described = describe(header, fingerprint)
    padding = bytes(-(len(described) + 2 * DIGEST_BYTES) % ALIGNMENT)
    described += _digest(key, padding, payload)
    return described + _digest(key, described) + padding


def describe(header: SpanHeader, fingerprint: bytes) -> bytes:
    """The header without its digests: as good as a name of the entry."""
    fields = _FIELDS.pack(
        _model(fingerprint),
        header.root,
        header.record,
        header.start,
        header.generation,
        header.num_layers,
        header.num_tokens,
        header.num_kv_heads,
        header.head_dim,
        header.dtype.encode("ascii"),
    )
    num_head = _PREAMBLE.size + len(fields) + len(header.token_ids) + 2 * DIGEST_BYTES
    return _PREAMBLE.pack(MAGIC, VERSION, num_head, header.num_bytes) + fields + header.token_ids


def file_bytes(header: SpanHeader) -> int:
    """How long an entry's file is."""
    num_head = _PREAMBLE.size + _FIELDS.size + len(header.token_ids) + 2 * DIGEST_BYTES
    return num_head + -num_head % ALIGNMENT + header.num_bytes


def payload_of(content: memoryview, header: SpanHeader, fingerprint: bytes, key: bytes) -> memoryview:
    """The payload of a whole file; raises NotThisSpan unless every byte is as it was written, and of this entry."""
    expected = describe(header, fingerprint)
    if len(content) != file_bytes(header) or content[: len(expected)] != expected:
        raise NotThisSpan("another entry, another model's or another version's, or cut off")
    num_head = len(expected) + 2 * DIGEST_BYTES
    _check_head(content, num_head, key)
    if not compare_digest(content[len(expected) : num_head - DIGEST_BYTES], _digest(key, content[num_head:])):
        raise NotThisSpan("the checksum differs")
    return content[len(content) - header.num_bytes :]


def decode_header(head: memoryview, num_bytes: int, fingerprint: bytes, key: bytes) -> SpanHeader:
    """The header of a file of `num_bytes`, from its first bytes. Raises NotThisSpan; the payload is not looked at."""
    num_head, num_payload = _lengths(head, num_bytes)
    _check_head(head, num_head, key)
    model, root, record, start, generation, *shape, dtype = _FIELDS.unpack_from(head, _PREAMBLE.size)
    num_layers, num_tokens, num_kv_heads, head_dim = shape
    if model != _model(fingerprint):
        raise NotThisSpan("another model's")
    ids = head[_PREAMBLE.size + _FIELDS.size : num_head - 2 * DIGEST_BYTES]
    if len(ids) != 4 * num_tokens:
        raise NotThisSpan("the header's length does not fit its tokens")
    return SpanHeader(
        root,
        record,
        start,
        generation,
        num_layers,
        num_kv_heads,
        head_dim,
        dtype.rstrip(b"\0").decode("ascii"),
        bytes(ids),
        num_payload,
    )


def _lengths(head: memoryview, num_bytes: int) -> tuple[int, int]:
    """The lengths of header and payload, which must be those of a file of `num_bytes`."""
    if len(head) < _PREAMBLE.size:
        raise NotThisSpan("too short")
    magic, version, num_head, num_payload = _PREAMBLE.unpack_from(head)
    if magic != MAGIC or version != VERSION:
        raise NotThisSpan("not this version of the format")
    fewest = _PREAMBLE.size + _FIELDS.size + 2 * DIGEST_BYTES
    if not fewest <= num_head <= len(head) or num_head + -num_head % ALIGNMENT + num_payload != num_bytes:
        raise NotThisSpan("the file is cut off, or its lengths are damaged")
    return num_head, num_payload


def _check_head(head: memoryview, num_head: int, key: bytes) -> None:
    if not compare_digest(head[num_head - DIGEST_BYTES : num_head], _digest(key, head[: num_head - DIGEST_BYTES])):
        raise NotThisSpan("the header's checksum differs")


def _model(fingerprint: bytes) -> bytes:
    return blake2b(fingerprint, digest_size=32).digest()


def _digest(key: bytes, *parts: bytes | memoryview) -> bytes:
    digest = hmac.new(key, digestmod=sha256)
    for part in parts:
        digest.update(part)
    return digest.digest()
