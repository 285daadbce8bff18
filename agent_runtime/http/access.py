"""Gives every request its principal, and every route the scope that it needs."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request

from agent_runtime.principal import LOCAL, AccessScope, Principal

KEY = "hunk.principal"
"""Where in the ASGI scope the middleware that knows the tokens puts the principal."""


def principal_of(request: Request) -> Principal:
    """Who sent the request."""
    found: Principal = request.scope.get(KEY, LOCAL)
    return found


def needs(scope: AccessScope) -> Callable[[Request], Principal]:
    """A dependency for a route: the principal, which has this scope, or the problem `forbidden`."""

    def check(request: Request) -> Principal:
        principal = principal_of(request)
        principal.check(scope)
        return principal

    return check
