"""Whom the shares of the service count against that a request takes: memory, turns, connections."""

from __future__ import annotations

import ipaddress

from starlette.types import Scope

from agent_runtime.access.principal import LOCAL, Principal
from agent_runtime.http.access import KEY


def holder_of(scope: Scope) -> str:
    """The tenant whose token the request came with, or the sender's network where the service knows no tokens.

    Behind a proxy all requests come from one address, and the tokens tell them apart.
    """
    principal: Principal = scope.get(KEY, LOCAL)
    if principal is not LOCAL:
        return principal.tenant
    client = scope.get("client")
    return f"@{network_of(client[0] if client else '')}"  # no tenant's name has an @


def network_of(address: str) -> str:
    """An IPv4 address as it is; of an IPv6 address its /64, of which a client has all."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(parsed), 64), strict=False))
    return str(parsed)
