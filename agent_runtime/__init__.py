"""Everything a person or a program touches: service, command line, prompts, model catalogue.

A request comes in by `http`, `cli`, `mcp` or the SDK (`client`); `access` tells whose it is, `limiting` when it may.
`apply` merges an edit by rule, or has `model_merge` ask (`prompt`, `deciding`); `chat` answers questions, `sessions`
and `context` those about files; `generation` has the engine write. `workspaces` and `files` read and write what lies on
disk, `models` finds and loads weights, `telemetry` tells what happens. `wiring` puts them together.

The names of the SDK (docs/sdk.md) are imported when they are asked for: `Client` needs no torch.
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
    "agent_runtime.client": (
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
    "agent_runtime.client.local": ("LocalClient",),
    "agent_runtime.types": ("ApplyRequest", "ApplyResult", "PatchRequest"),
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
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
