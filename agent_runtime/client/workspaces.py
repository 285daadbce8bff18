"""The workspaces of a service, as `client.workspaces` has them: folders that it may read and write, by name."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from agent_runtime.client import workspace_calls as calls
from agent_runtime.client.call import Call, Value
from agent_runtime.client.workspace_calls import DEFAULT, WAIT_SECONDS, Walk, Whole

if TYPE_CHECKING:
    from agent_runtime.browsing import FileContent, SnapshotPage, WorkspaceChanges, WorkspaceStatus
    from agent_runtime.workspaces.listing import ListedFile


class Send(Protocol):
    """Sends a call and gives the value of its answer."""

    def __call__(self, call: Call[Value], /) -> Value: ...


class AsyncSend(Protocol):
    """As `Send`, to be awaited."""

    def __call__(self, call: Call[Value], /) -> Awaitable[Value]: ...


class ClientWorkspaces:
    """Those that the client's token may see; the one that the service was started with is called `default`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def list(self) -> tuple[WorkspaceStatus, ...]:
        """The state of each."""
        return self._send(calls.list_call())

    def register(self, root: str, name: str | None = None) -> WorkspaceStatus:
        """Make a folder on the service's machine a workspace, called as the folder is if not otherwise.

        Again the same does nothing. Raises Forbidden without the scope `admin`, OutsideRoot where the service was not
        started with `--allow-root` for it, Conflict where the name is taken.
        """
        return self._send(calls.register_call(root, name))

    def status(self, name: str = DEFAULT) -> WorkspaceStatus:
        """The state of one; raises WorkspaceMissing."""
        return self._send(calls.status_call(name))

    def remove(self, name: str) -> None:
        """Have the service forget one and end its sessions; its files stay. Raises Forbidden, WorkspaceMissing."""
        self._send(calls.remove_call(name))

    def files(self, name: str = DEFAULT) -> tuple[ListedFile, ...]:
        """All files by path, but those that git ignores."""
        return self._walk(calls.files_walk(name))

    def read(self, path: str, name: str = DEFAULT) -> FileContent:
        """One file: text, encoding and hash; raises FileMissing, OutsideRoot, BadFile where it is no text."""
        return self._send(calls.read_call(name, path))

    def snapshot(self, name: str = DEFAULT, *, spans: bool = False) -> SnapshotPage:
        """All files as tokens, with hashes, and with the ends of their spans if asked for; raises NotIndexed."""
        return self._walk(calls.snapshot_walk(name, spans=spans))

    def changes(self, since: str, name: str = DEFAULT, *, timeout_s: float = WAIT_SECONDS) -> WorkspaceChanges:
        """What changed since a version, as soon as anything has; nothing, where nothing does for `timeout_s`.

        `since` is the `version` of a snapshot or of the last changes; raises SnapshotGone where it is too old.
        """
        return self._send(calls.changes_call(name, since, timeout_s))

    def _walk(self, walk: Walk[Whole]) -> Whole:
        value: Any = None
        while True:
            try:
                call = walk.send(value)
            except StopIteration as end:
                whole: Whole = end.value
                return whole
            value = self._send(call)


class AsyncClientWorkspaces:
    """As `ClientWorkspaces`."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def list(self) -> tuple[WorkspaceStatus, ...]:
        """As `ClientWorkspaces.list`."""
        return await self._send(calls.list_call())

    async def register(self, root: str, name: str | None = None) -> WorkspaceStatus:
        """As `ClientWorkspaces.register`."""
        return await self._send(calls.register_call(root, name))

    async def status(self, name: str = DEFAULT) -> WorkspaceStatus:
        """As `ClientWorkspaces.status`."""
        return await self._send(calls.status_call(name))

    async def remove(self, name: str) -> None:
        """As `ClientWorkspaces.remove`."""
        await self._send(calls.remove_call(name))

    async def files(self, name: str = DEFAULT) -> tuple[ListedFile, ...]:
        """As `ClientWorkspaces.files`."""
        return await self._walk(calls.files_walk(name))

    async def read(self, path: str, name: str = DEFAULT) -> FileContent:
        """As `ClientWorkspaces.read`."""
        return await self._send(calls.read_call(name, path))

    async def snapshot(self, name: str = DEFAULT, *, spans: bool = False) -> SnapshotPage:
        """As `ClientWorkspaces.snapshot`."""
        return await self._walk(calls.snapshot_walk(name, spans=spans))

    async def changes(self, since: str, name: str = DEFAULT, *, timeout_s: float = WAIT_SECONDS) -> WorkspaceChanges:
        """As `ClientWorkspaces.changes`."""
        return await self._send(calls.changes_call(name, since, timeout_s))

    async def _walk(self, walk: Walk[Whole]) -> Whole:
        value: Any = None
        while True:
            try:
                call = walk.send(value)
            except StopIteration as end:
                whole: Whole = end.value
                return whole
            value = await self._send(call)
