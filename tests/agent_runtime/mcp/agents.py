"""MCP's official client, over HTTP to a server in this process, or over stdio."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import uvicorn
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from agent_runtime.mcp.answers import VALUES
from agent_runtime.mcp.backends import Backend
from agent_runtime.mcp.server import build_http_app
from agent_runtime.mcp.tools import build_server
from agent_runtime.server.token_file import LiveTokens

HUNK = Path(sys.executable).with_name("hunk")

Result = TypeVar("Result")


@contextmanager
def served(backend: Backend, tokens: LiveTokens | None = None) -> Iterator[str]:
    """Serve a backend; yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(build_http_app(build_server(backend), listener, tokens=tokens), log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join()
            backend.close()


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[ClientSession]:
    """Open and initialise a session."""
    async with streamable_http_client(url) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        yield session


@asynccontextmanager
async def over_stdio(*arguments: str | Path) -> AsyncIterator[ClientSession]:
    """Open a session with `hunk mcp` in a process of its own."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryDirectory() as cache:
        environment = {"HUNK_CONFIG": "", "HUNK_CACHE": cache, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        server = StdioServerParameters(command=str(HUNK), args=["mcp", *map(str, arguments)], env=environment)
        async with stdio_client(server, errlog=said) as (reading, writing), ClientSession(reading, writing) as session:
            await session.initialize()
            yield session


def asking(url: str, work: Callable[[ClientSession], Awaitable[Result]]) -> Result:
    """Return the result of one session over HTTP."""

    async def run() -> Result:
        async with over_http(url) as session:
            return await work(session)

    return anyio.run(run)


def called(url: str, tool: str, **arguments: object) -> CallToolResult:
    """Call one tool."""

    async def call(session: ClientSession) -> CallToolResult:
        return await session.call_tool(tool, arguments, meta={VALUES: True})

    return asking(url, call)


def values_of(result: CallToolResult) -> Any:
    """The values of an answer, for programs; a model gets its text alone."""
    assert result.structured_content is None
    assert result.meta is not None
    return result.meta[VALUES]


def text_of(result: CallToolResult) -> str:
    """Return all text of an answer."""
    return "\n".join(content.text for content in result.content if content.type == "text")
