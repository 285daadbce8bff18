"""Gives every request its principal, and every route the scope that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from agent_runtime.access.principal import LOCAL, AccessScope, Principal

KEY = "hunk.principal"
"""Where in the ASGI scope the middleware that knows the tokens puts the principal."""

BEARER = HTTPBearer(
    scheme_name="bearer",
    description="A token of the service; without tokens it listens on loopback only.",
    auto_error=False,
)
"""Only describes the header in the OpenAPI document: the middleware reads it."""


def principal_of(request: Request) -> Principal:
    """Who sent the request."""
    found: Principal = request.scope.get(KEY, LOCAL)
    return found


def needs(scope: AccessScope) -> Callable[..., Awaitable[Principal]]:
    """A dependency for a route: the principal, which has this scope, or the problem `forbidden`."""

    async def check(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)] = None
    ) -> Principal:
        principal = principal_of(request)
        principal.check(scope)
        return principal

    return check
