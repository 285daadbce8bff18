"""Sends edits to a running service, or has them merged in this process; docs/sdk.md shows how."""

from agent_runtime.client.apply_calls import BatchItem, EditRequest
from agent_runtime.client.asynchronous import AsyncClient
from agent_runtime.client.blocking import Client
from agent_runtime.client.events import Phase, Tokens
from agent_runtime.client.requests import WorkspaceRequest
from agent_runtime.client.service_calls import ModelEntry
from agent_runtime.client.session_calls import AskOptions, EditOptions, SessionUsage, Turn
from agent_runtime.client.sessions import AsyncSession, Session
from agent_runtime.client.settings import DEFAULT_URL, NO_RETRIES, Retries, Timeouts
from agent_runtime.client.streams import AsyncItems, AsyncStream, Items, Stream

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
