"""Bearer tokens: what one is made of, what is kept of it, and whose request one is.

A token is `hunk_ID_SECRET`. ID tells which line of the token file it is and is no secret; SECRET is 256 random bits.
The file keeps the SHA-256 of the whole: a slow hash with a salt, as for passwords, guards what people can remember and
others can guess. 256 random bits are guessed at no speed, and a slow hash would cost every request its milliseconds.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

from agent_runtime.access.principal import AccessScope, Principal
from agent_runtime.errors import Unauthorized

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

    def with_token(self, token: AccessToken) -> TokenSet:
        """These and one more; a tenant's first token gives it its salt."""
        salts = {token.tenant: secrets.token_hex(SALT_BYTES), **self.salts}
        return TokenSet((*self.tokens, token), salts)

    def without(self, token: AccessToken) -> TokenSet:
        """These but for one; with its last token a tenant loses its salt, and what was kept for it."""
        left = tuple(one for one in self.tokens if one.id != token.id)
        tenants = {one.tenant for one in left}
        return TokenSet(left, {tenant: salt for tenant, salt in self.salts.items() if tenant in tenants})

    def named(self, name_or_id: str) -> AccessToken | None:
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
