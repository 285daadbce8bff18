"""The service, the command line, the SDK, and the models and prompts behind them.

A request comes in by `server`, `cli`, `mcp` or the SDK (`client`). `request_context` says whose it is, `quotas` when it
may run. `apply` merges an edit by rule, or asks the model (`llm`, `prompt`). `llm` also answers chats. `session` keeps
conversations about files. `workspace` reads and writes files, `models` finds and loads weights. `telemetry` logs,
counts and traces. `wiring` puts the parts together.

Users import the names of the SDK (docs/sdk.md) from `hunk`. They are loaded when they are asked for: `Client` needs no
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_runtime.client import (
        AsyncClient,
        BatchItem,
        Client,
        Phase,
        Retries,
        Session,
        Timeouts,
        Tokens,
        WorkspaceRequest,
    )
    from agent_runtime.client.local import LocalClient
    from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest

_HOME = {
    ".client": (
        "AsyncClient",
        "BatchItem",
        "Client",
        "Phase",
        "Retries",
        "Timeouts",
        "Tokens",
        "Session",
        "WorkspaceRequest",
    ),
    ".client.local": ("LocalClient",),
    ".types": ("ApplyRequest", "ApplyResult", "PatchRequest"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ApplyRequest",
    "ApplyResult",
    "AsyncClient",
    "BatchItem",
    "Client",
    "LocalClient",
    "PatchRequest",
    "Phase",
    "Retries",
    "Session",
    "Timeouts",
    "Tokens",
    "WorkspaceRequest",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
