"""The file that keeps the tokens of a service: read, changed by `hunk token`, and read again when it has changed."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from agent_runtime.access import NAME, AccessScope, AccessToken, Principal, TokenSet
from agent_runtime.errors import TokensUnreadable
from agent_runtime.files import lock_folder, replace_file

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
    def _hang_together(self) -> _Tokens:
        for what in ("id", "name"):
            values = [getattr(token, what) for token in self.tokens]
            if len(set(values)) != len(values):
                raise ValueError(f"two tokens have the same {what}")
        missing = {token.tenant for token in self.tokens} - set(self.salts)
        if missing:
            raise ValueError(f"there is no salt for {', '.join(sorted(missing))}")
        return self


class TokenFile:
    """One file, 0600: whoever reads it learns names and salts but no token; whoever writes it is let in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> TokenSet:
        """Return the tokens of the file; raises TokensUnreadable."""
        with self._faults():
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
        """Replace what the file holds, which is made if it is not there; raises what `read` and `change` raise."""
        with self._faults():
            path = self.path.resolve()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock_folder(path.parent):
                replace_file(path, _json_of(change(self.read() if path.exists() else TokenSet())))

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TokensUnreadable(f"the token file {self.path}: {error.strerror or error}") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise TokensUnreadable(f"the token file {self.path} is damaged: {place} {first['msg']}") from None


class LiveTokens:
    """The tokens of a running service: the file's, as it is now.

    A file that cannot be read lets nobody in; it is said once for each state of the file.
    """

    def __init__(self, file: TokenFile, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Raises TokensUnreadable."""
        self._file = file
        self._now = now
        self._seen = self._state()
        self._tokens: TokenSet | None = file.read()

    def principal(self, sent: str) -> Principal:
        """Return the principal of a sent token; raises Unauthorized, or TokensUnreadable."""
        state = self._state()
        if state != self._seen:
            self._tokens = self._read()
            self._seen = state
        if self._tokens is None:
            raise TokensUnreadable("the service cannot read its token file; its log says why")
        return self._tokens.principal(sent, self._now())

    def _state(self) -> tuple[int, ...] | None:
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


def _json_of(tokens: TokenSet) -> bytes:
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
