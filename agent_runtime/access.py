"""Principals, their scopes, and bearer tokens.

A token is `hunk_ID_SECRET`. ID tells which line of the token file it is and is no secret; SECRET is 256 random bits.
The file keeps the SHA-256 of the whole: a slow hash with a salt, as for passwords, guards what people can remember and
others can guess. 256 random bits are guessed at no speed, and a slow hash would cost every request its milliseconds.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from ipaddress import ip_address
from typing import Literal, get_args

from agent_runtime.errors import BadRequest, Forbidden, Unauthorized

AccessScope = Literal["apply", "read", "admin"]
"""`apply`: have edits merged and the model asked, and write where the workspace allows it. `read`: see files, states
and metrics. `admin`: register workspaces; holds the other two."""

ALL_SCOPES: frozenset[AccessScope] = frozenset(get_args(AccessScope))


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever sent a request. `salt` keeps what is computed for one tenant from all others (`Options.salt`)."""

    tenant: str
    scopes: frozenset[AccessScope]
    salt: str = ""

    def may(self, scope: AccessScope) -> bool:
        """Whether it may do what `scope` stands for."""
        return scope in self.scopes or "admin" in self.scopes

    def check(self, scope: AccessScope) -> None:
        """Raise Forbidden where it may not."""
        if not self.may(scope):
            raise Forbidden(f"the token of {self.tenant!r} lacks the scope {scope!r}; ask for one that has it")


LOCAL = Principal("local", ALL_SCOPES)
"""Everybody, where the service knows no tokens: it then listens on loopback only."""

PURPOSE = b"hunk bearer token\0"
"""Goes before what is hashed, so that no hash of anything else, wherever it comes from, is a token's."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Of tokens and tenants: they stand in logs and labels of metrics."""

SALT_BYTES = 16

_TOKEN = re.compile(r"hunk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """What is kept of one token. `expires`: from then on it is refused; None: never."""

    id: str
    name: str
    tenant: str
    scopes: frozenset[AccessScope]
    sha256: str
    created: datetime
    expires: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        """Whether it is refused by now."""
        return self.expires is not None and now >= self.expires


@dataclass(frozen=True, slots=True)
class TokenSet:
    """All tokens of a service, and the salt of each tenant (`Principal.salt`)."""

    tokens: Sequence[AccessToken] = ()
    salts: Mapping[str, str] = field(default_factory=dict)

    def principal(self, sent: str, now: datetime) -> Principal:
        """Whose token was sent; raises Unauthorized, which does not say what is wrong with it but for its age.

        The line is looked up by the ID, and what is secret is compared in constant time, for an unknown ID too.
        """
        match = _TOKEN.fullmatch(sent)
        found = None if match is None else next((one for one in self.tokens if one.id == match[1]), None)
        is_right = hmac.compare_digest(digest(sent), _NOBODY if found is None else found.sha256)
        if found is None or not is_right:
            raise Unauthorized("the service does not know this token; `hunk token list` lists those that it knows")
        if found.has_expired(now):
            raise Unauthorized(f"the token {found.name!r} has expired; make another with `hunk token new`")
        return Principal(found.tenant, found.scopes, self.salts[found.tenant])

    def add_token(self, token: AccessToken) -> TokenSet:
        """These and one more; a tenant's first token gives it its salt."""
        salts = {token.tenant: secrets.token_hex(SALT_BYTES), **self.salts}
        return TokenSet((*self.tokens, token), salts)

    def remove_token(self, token: AccessToken) -> TokenSet:
        """These but for one; with its last token a tenant loses its salt, and what was kept for it."""
        left = tuple(one for one in self.tokens if one.id != token.id)
        tenants = {one.tenant for one in left}
        return TokenSet(left, {tenant: salt for tenant, salt in self.salts.items() if tenant in tenants})

    def find_token(self, name_or_id: str) -> AccessToken | None:
        """The token of this name or ID."""
        return next((one for one in self.tokens if name_or_id in (one.name, one.id)), None)


def new_token(
    name: str, tenant: str, scopes: frozenset[AccessScope], created: datetime, expires: datetime | None = None
) -> tuple[AccessToken, str]:
    """A new token as it is kept, and its text, which is kept nowhere."""
    token_id = secrets.token_hex(6)
    text = f"hunk_{token_id}_{secrets.token_urlsafe(32)}"
    return AccessToken(token_id, name, tenant, scopes, digest(text), created, expires), text


def digest(token: str) -> str:
    """What is kept of a token's text."""
    return sha256(PURPOSE + token.encode("utf-8", "surrogatepass")).hexdigest()


_NOBODY = digest(secrets.token_urlsafe(32))


def check_loopback(host: str) -> None:
    """Raise BadRequest where others may reach a service there, that asks nobody for a token."""
    if not _is_loopback(host):
        raise BadRequest(
            f"others reach {host or 'all addresses'}, and the service would ask nobody who they are: make a token with "
            "`hunk token new NAME` and give its file with --tokens FILE, or listen on 127.0.0.1",
            field="host",
        )


def _is_loopback(host: str) -> bool:
    """Whether all addresses of a name are; one that has none cannot be listened on anyway."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return True
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
