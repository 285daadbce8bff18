"""Who asks: the tenant that a request belongs to, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from agent_runtime.errors import Forbidden

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
