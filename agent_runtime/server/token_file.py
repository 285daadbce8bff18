"""Bearer tokens and the file that stores them: `hunk token` changes it, a running service reads it again.

A token is `hunk_ID_SECRET`. ID finds its entry in the token file and is not secret; SECRET is 256 random bits. The file
stores the SHA-256 of the whole token. Passwords need a slow hash with a salt, because they can be guessed. 256 random
bits cannot, and a slow hash would cost every request milliseconds.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from agent_runtime.errors import TokensUnreadable, Unauthorized
from agent_runtime.files import lock_folder, replace_file
from agent_runtime.request_context import AccessScope, Principal
from repo_cache.files import FOLLOWING_READ_FLAGS

PURPOSE = b"hunk bearer token\0"
"""Prefix of the hashed text, so that no hash made for another purpose is that of a token."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of tokens and tenants, which are written to logs and labels of metrics."""

OWN_TENANT = "@commands"
"""Tenant of the commands of the user who runs the service; the name is not allowed in a token file."""

SALT_BYTES = 16

_TOKEN = re.compile(r"hunk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A stored token, without its secret. `expires`: the time from which it is refused; None: never."""

    id: str
    name: str
    tenant: str
    scopes: frozenset[AccessScope]
    sha256: str
    created: datetime
    expires: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        """Return whether it is refused at this time."""
        return self.expires is not None and now >= self.expires


@dataclass(frozen=True, slots=True)
class TokenSet:
    """All tokens of a service, and the salt of each tenant (`Principal.salt`)."""

    tokens: Sequence[AccessToken] = ()
    salts: Mapping[str, str] = field(default_factory=dict)

    def find_principal(self, sent: str, now: datetime) -> Principal:
        """Return the principal of a sent token; raises Unauthorized, which gives no reason except expiry.

        The entry is found by the ID. The hash is compared in constant time, for an unknown ID too.
        """
        match = _TOKEN.fullmatch(sent)
        found = None if match is None else next((one for one in self.tokens if one.id == match[1]), None)
        is_right = hmac.compare_digest(hash_token(sent), _NOBODY if found is None else found.sha256)
        if found is None or not is_right:
            raise Unauthorized("the service does not know this token; `hunk token list` lists those that it knows")
        if found.has_expired(now):
            raise Unauthorized(f"the token {found.name!r} has expired; make another with `hunk token new`")
        return Principal(found.tenant, found.scopes, self.salts[found.tenant])

    def add_token(self, token: AccessToken) -> TokenSet:
        """Return a set with one more token; the first token of a tenant makes its salt."""
        salts = {token.tenant: secrets.token_hex(SALT_BYTES), **self.salts}
        return TokenSet((*self.tokens, token), salts)

    def remove_token(self, token: AccessToken) -> TokenSet:
        """Return a set without a token; without any token, a tenant loses its salt, and so its cache."""
        left = tuple(one for one in self.tokens if one.id != token.id)
        tenants = {one.tenant for one in left}
        return TokenSet(left, {tenant: salt for tenant, salt in self.salts.items() if tenant in tenants})

    def find_token(self, name_or_id: str) -> AccessToken | None:
        """Return the token of this name or ID, None if there is none."""
        return next((one for one in self.tokens if name_or_id in (one.name, one.id)), None)


def _get_id(sent: str) -> str:
    match = _TOKEN.fullmatch(sent)
    return "" if match is None else match[1]


def make_token(
    name: str, tenant: str, scopes: frozenset[AccessScope], created: datetime, expires: datetime | None = None
) -> tuple[AccessToken, str]:
    """Make a token; return its stored form and its text, which is not stored."""
    token_id = secrets.token_hex(6)
    text = f"hunk_{token_id}_{secrets.token_urlsafe(32)}"
    return AccessToken(token_id, name, tenant, scopes, hash_token(text), created, expires), text


def hash_token(token: str) -> str:
    """Return the stored hash of a token's text."""
    return sha256(PURPOSE + token.encode("utf-8", "surrogatepass")).hexdigest()


_NOBODY = hash_token(secrets.token_urlsafe(32))


MAX_FILE_BYTES = 4 << 20

Name = Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")]
Hex = Annotated[str, StringConstraints(pattern="^[0-9a-f]+$")]

LOG = logging.getLogger("hunk.tokens")


class _Token(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: Hex
    name: Name
    tenant: Name
    scopes: list[AccessScope]
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    created: AwareDatetime
    expires: AwareDatetime | None = None


class _Tokens(BaseModel):
    """The file's JSON."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    salts: dict[Name, Annotated[Hex, StringConstraints(min_length=32)]]
    tokens: list[_Token]

    @model_validator(mode="after")
    def _check_consistent(self) -> _Tokens:
        for what in ("id", "name"):
            values = [getattr(token, what) for token in self.tokens]
            if len(set(values)) != len(values):
                raise ValueError(f"two tokens have the same {what}")
        missing = {token.tenant for token in self.tokens} - set(self.salts)
        if missing:
            raise ValueError(f"there is no salt for {', '.join(sorted(missing))}")
        return self


class TokenFile:
    """The token file, mode 0600. It contains names, salts and hashes, but no token; who can write it has access."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> TokenSet:
        """Return the tokens of the file; raises TokensUnreadable."""
        with self._translate_errors():
            descriptor = os.open(self.path, FOLLOWING_READ_FLAGS)
            with os.fdopen(descriptor, "rb") as file:
                state = os.fstat(descriptor)
                if not stat.S_ISREG(state.st_mode):
                    raise TokensUnreadable(f"the token file {self.path} is not a regular file")
                if state.st_mode & 0o077:
                    raise TokensUnreadable(f"others than you may use the token file: run `chmod 600 {self.path}`")
                data = file.read(MAX_FILE_BYTES + 1)
            parsed = _Tokens.model_validate_json(data)
        tokens = [
            AccessToken(one.id, one.name, one.tenant, frozenset(one.scopes), one.sha256, one.created, one.expires)
            for one in parsed.tokens
        ]
        return TokenSet(tokens, parsed.salts)

    def change(self, change: Callable[[TokenSet], TokenSet]) -> None:
        """Replace the content of the file, which is created if missing; raises what `read` and `change` raise."""
        with self._translate_errors():
            path = self.path.resolve()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock_folder(path.parent):
                replace_file(path, _to_json(change(self.read() if path.exists() else TokenSet())))

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TokensUnreadable(f"the token file {self.path}: {error.strerror or error}") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise TokensUnreadable(f"the token file {self.path} is damaged: {place} {first['msg']}") from None


class LiveTokens:
    """The tokens of a running service, read again whenever the file has changed.

    While the file cannot be read, all requests are refused; each such state of the file is logged once.
    """

    def __init__(self, file: TokenFile, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Read the file; raises TokensUnreadable."""
        self._file = file
        self._now = now
        self._seen = self._get_state()
        self._tokens: TokenSet | None = file.read()
        self._own = TokenSet()

    def make_own_token(self) -> str:
        """Return a token for commands of the user who runs the service; it is in no file and ends with the process."""
        token, text = make_token("commands", OWN_TENANT, frozenset({"apply"}), self._now())
        self._own = self._own.add_token(token)
        return text

    def find_principal(self, sent: str) -> Principal:
        """Return the principal of a sent token; raises Unauthorized, or TokensUnreadable."""
        state = self._get_state()
        if state != self._seen:
            self._tokens = self._read()
            self._seen = state
        if any(token.id == _get_id(sent) for token in self._own.tokens):
            return self._own.find_principal(sent, self._now())
        if self._tokens is None:
            raise TokensUnreadable("the service cannot read its token file; its log says why")
        return self._tokens.find_principal(sent, self._now())

    def _get_state(self) -> tuple[int, ...] | None:
        """Return the stat of the file, which changes when it is written or replaced; None if it is gone."""
        try:
            state = self._file.path.stat()
        except OSError:
            return None
        return (state.st_dev, state.st_ino, state.st_size, state.st_mode, state.st_mtime_ns, state.st_ctime_ns)

    def _read(self) -> TokenSet | None:
        try:
            return self._file.read()
        except TokensUnreadable as fault:
            LOG.error("nobody is let in: %s", fault)
            return None


def _to_json(tokens: TokenSet) -> bytes:
    entries = [
        _Token(
            id=one.id,
            name=one.name,
            tenant=one.tenant,
            scopes=sorted(one.scopes),
            sha256=one.sha256,
            created=one.created,
            expires=one.expires,
        )
        for one in tokens.tokens
    ]
    return _Tokens(salts=dict(tokens.salts), tokens=entries).model_dump_json(indent=2).encode() + b"\n"
