"""The SDK of Hunk: merges code edits into files (docs/sdk.md).

    import hunk

    result = hunk.apply("src/limits.py", {"old_string": "LIMIT = 10", "new_string": "LIMIT = 20"}, write=True)

A name is loaded when it is asked for. `hunk.errors` has the exceptions, `hunk.testing` a service for tests. In a wheel
the packages `agent_runtime`, `editor`, `engine`, `kernels` and `repo_cache` are below this one (`hatch_build.py`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import agent_runtime as _sdk
from agent_runtime.version import __version__

if TYPE_CHECKING:
    from agent_runtime import (
        ApplyRequest,
        ApplyResult,
        AsyncClient,
        BatchItem,
        Client,
        LocalClient,
        PatchRequest,
        Phase,
        Retries,
        Session,
        Timeouts,
        Tokens,
        WorkspaceRequest,
    )
    from agent_runtime.client.one_file import apply, undo

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
    "__version__",
    "apply",
    "undo",
]


def __getattr__(name: str) -> Any:
    if name in ("apply", "undo"):
        from agent_runtime.client import one_file

        return getattr(one_file, name)
    if name in ("errors", "testing", "types"):
        return import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_sdk, name)


def __dir__() -> list[str]:
    return sorted(__all__)
