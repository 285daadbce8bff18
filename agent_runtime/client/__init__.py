"""The SDK: sends edits to a running service, or merges them in this process (docs/sdk.md)."""

from agent_runtime.client.calls import BatchItem, EditRequest, ModelEntry, WorkspaceRequest
from agent_runtime.client.client import AsyncClient, Client
from agent_runtime.client.responses import AsyncItems, AsyncStream, Items, Phase, Stream, Tokens
from agent_runtime.client.sessions import AskOptions, AsyncSession, EditOptions, Session, SessionUsage, Turn
from agent_runtime.client.transport import DEFAULT_URL, NO_RETRIES, Retries, Timeouts

__all__ = [
    "DEFAULT_URL",
    "NO_RETRIES",
    "AskOptions",
    "AsyncClient",
    "AsyncItems",
    "AsyncSession",
    "AsyncStream",
    "BatchItem",
    "Client",
    "EditOptions",
    "EditRequest",
    "Items",
    "ModelEntry",
    "Phase",
    "Retries",
    "Session",
    "SessionUsage",
    "Stream",
    "Timeouts",
    "Tokens",
    "Turn",
    "WorkspaceRequest",
]
