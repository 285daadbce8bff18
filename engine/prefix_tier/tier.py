"""A store of sealed KV by key, and Valkey as one."""

from __future__ import annotations

import hmac
import logging
import struct
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_bytes
from typing import Any, Protocol

from engine.errors import EngineError

log = logging.getLogger(__name__)

CONNECT_SECONDS = 0.5
READ_SECONDS = 2.0
"""How long the server may take to accept a connection, and to send the next bytes."""

TLS_SCHEMES = ("valkeys://", "rediss://")

READ_BYTES = 1 << 20
"""Bytes that are asked for at a time; with the client's 64 KB, 48 MB take 0.09 s instead of 0.07 s."""


class TierFault(Exception):
    """The store cannot be used now: it is down, slow, full, or not what it should be."""


class PrefixTier(Protocol):
    """A store of values by key that may forget any of them at any time. Thread-safe."""

    def get_many(self, keys: Sequence[bytes]) -> Generator[bytes | None, None, None]:
        """Yield the value of each key as it arrives, None for one that is not there; raises TierFault.

        Closing the iterator ends the transfer.
        """

    def count_first(self, keys: Sequence[bytes]) -> int:
        """Return how many of the first keys are there, up to the first that is not; raises TierFault."""

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value; raises TierFault."""

    def find_misconfiguration(self) -> str:
        """Return what of the store's configuration should be otherwise, "" if nothing; raises TierFault."""

    def close(self) -> None:
        """End all connections."""


class ValkeyTier:
    """A Valkey (or Redis) server. Its own eviction bounds what is stored."""

    def __init__(self, url: str) -> None:
        """`url` as in valkey-py: valkey://[user:password@]host:port/db, valkeys:// with TLS, unix://. It is not reached
        yet. Raises EngineError where the client is not installed or cannot read the URL.
        """
        try:
            import valkey
        except ModuleNotFoundError as error:
            raise EngineError(
                "a shared tier needs valkey, which is not installed: `pip install 'hunk-apply[scale]'`"
            ) from error
        from valkey.backoff import NoBackoff
        from valkey.retry import Retry

        options: dict[str, Any] = {
            "socket_timeout": READ_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_read_size": READ_BYTES,
        }
        if url.startswith(TLS_SCHEMES):
            options["ssl_check_hostname"] = True  # the client's default takes any host's certificate
        try:
            self._client = valkey.Valkey.from_url(url, retry=Retry(NoBackoff(), 0), **options)
            self._pool = self._client.connection_pool
            self._pool.connection_class(**self._pool.connection_kwargs)  # of an unknown parameter it says so only here
        except (TypeError, ValueError) as error:
            said = str(error).replace(
                "AbstractConnection.__init__() got an unexpected keyword argument", "no parameter"
            )
            raise EngineError(f"the URL of the shared tier cannot be read: {said}") from error
        self._faults = (valkey.ValkeyError, OSError, ValueError)  # the last where `close` takes a connection away
        self._refusals: type[Exception] = valkey.ResponseError

    def get_many(self, keys: Sequence[bytes]) -> Generator[bytes | None, None, None]:
        """Yield the values; all keys are asked for at once."""
        connection: Any = None
        num_left = len(keys)
        try:
            connection = self._pool.get_connection("GET")
            connection.send_packed_command(connection.pack_commands([("GET", key) for key in keys]))
            for _ in keys:
                try:
                    value = connection.read_response(disable_decoding=True)
                except self._refusals:  # the value is no string: somebody else's
                    value = None
                num_left -= 1
                yield value if isinstance(value, bytes) else None
        except self._faults as error:
            raise TierFault(str(error) or type(error).__name__) from error
        finally:
            if connection is not None:
                if num_left:  # answers are still on their way
                    connection.disconnect()
                self._pool.release(connection)

    def count_first(self, keys: Sequence[bytes]) -> int:
        """Return the number of keys before the first that is not there; all are asked for at once."""
        try:
            asking = self._client.pipeline(transaction=False)
            for key in keys:
                asking.exists(key)
            found = asking.execute()  # type: ignore[no-untyped-call]
        except self._faults as error:
            raise TierFault(str(error) or type(error).__name__) from error
        return next((at for at, is_there in enumerate(found) if not is_there), len(keys))

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        try:
            self._client.set(key, value)
        except self._faults as error:
            raise TierFault(str(error) or type(error).__name__) from error

    def find_misconfiguration(self) -> str:
        """Return what is wrong where the server has no limit of memory, or refuses writes at its limit."""
        try:
            memory: Any = self._client.info("memory")
        except self._faults as error:
            raise TierFault(str(error) or type(error).__name__) from error
        limit, policy = memory.get("maxmemory"), memory.get("maxmemory_policy")
        if not limit:
            return "its maxmemory is 0, so that it grows without bound: set it, and maxmemory-policy allkeys-lru"
        if policy == "noeviction":
            return "its maxmemory-policy is noeviction, so that it refuses KV once it is full: set allkeys-lru"
        return ""

    def close(self) -> None:
        """End all connections."""
        with suppress(Exception):
            self._client.close()  # type: ignore[no-untyped-call]


class NotThisChunk(Exception):
    """A value is damaged, or was not sealed for this place."""


NONCE_BYTES, TAG_BYTES = 12, 16

VERSION = b"hunk-prefix-1"


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What a chunk's KV depends on beside its tokens. root: of the chain, with the model's fingerprint and the tenant's
    salt (`engine.kv_cache.root_key`). dtype, shape: of the tensor.
    """

    root: bytes
    dtype: str
    shape: tuple[int, ...]

    def pack(self) -> bytes:
        """Return it as bytes; no two headers have the same."""
        fields = (VERSION, self.root, self.dtype.encode("ascii"), struct.pack(f"<{len(self.shape)}Q", *self.shape))
        return b"".join(struct.pack("<Q", len(each)) + each for each in fields)


class ChunkSeal:
    """Names and encrypts chunks with keys that are derived from a secret.

    A name is an HMAC of the chain's digest, so that nobody without the secret can tell whose or which text it is. A
    value is nonce, ciphertext and tag of AES-256-GCM, with name and header as associated data.
    """

    def __init__(self, secret: bytes) -> None:
        """Raises EngineError where `cryptography` is not installed, ValueError for a secret of less than 32 bytes."""
        if len(secret) < 32:
            raise ValueError(f"the key of the shared tier has {len(secret)} bytes; it needs 32")
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ModuleNotFoundError as error:
            raise EngineError(
                "a shared tier needs cryptography, which is not installed: `pip install 'hunk-apply[scale]'`"
            ) from error
        self._names = hmac.digest(secret, b"names", sha256)
        self._cipher = AESGCM(hmac.digest(secret, b"values", sha256))
        self._invalid = InvalidTag

    def make_name(self, digest: bytes) -> bytes:
        """Return the store's key of the chunk whose chain ends with this digest."""
        return b"hunk:" + hmac.digest(self._names, digest, sha256).hex().encode("ascii")

    def seal(self, name: bytes, header: ChunkHeader, payload: memoryview) -> bytes:
        """Return the value to store."""
        nonce = token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, payload, name + header.pack())

    def open_into(self, name: bytes, header: ChunkHeader, value: bytes, payload: memoryview) -> None:
        """Decrypt a value into `payload`; raises NotThisChunk."""
        if len(value) != NONCE_BYTES + len(payload) + TAG_BYTES:
            raise NotThisChunk
        sealed = memoryview(value)
        try:
            self._cipher.decrypt_into(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], name + header.pack(), payload)
        except self._invalid as error:
            raise NotThisChunk from error
