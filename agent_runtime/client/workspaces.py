"""Workspaces of a service, and the calls about them.

Types of answers are imported when needed: they load the tokenizer's library, which merging edits does not need.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agent_runtime.client.calls import Call, Value, build_path, make_value, quote_file_path

if TYPE_CHECKING:
    from agent_runtime.server.views import FileContent, SnapshotFile, SnapshotPage, WorkspaceChanges, WorkspaceStatus
    from agent_runtime.workspace.registry import FilePage, ListedFile

DEFAULT = "default"
"""The workspace that the service was started with."""

PAGE = 10_000
WAIT_SECONDS = 25.0

Whole = TypeVar("Whole")
Walk = Generator[Call[Any], Any, Whole]


def build_list_call() -> Call[tuple[WorkspaceStatus, ...]]:
    """Build the call that lists all workspaces of the token."""
    return Call(
        "GET",
        "/workspaces",
        lambda answer: tuple(status_from_json(each) for each in answer["workspaces"]),
    )


def build_register_call(root: str, name: str | None) -> Call[WorkspaceStatus]:
    """Build the call that registers a workspace; registering the same again has no effect."""
    body = {"root": root} | ({"name": name} if name is not None else {})
    return Call("POST", "/workspaces", status_from_json, body, changes_nothing=True)


def build_status_call(name: str) -> Call[WorkspaceStatus]:
    """Build the call for the state of one workspace."""
    return Call("GET", build_path("workspaces", name), status_from_json)


def build_remove_call(name: str) -> Call[None]:
    """Build the call that removes a workspace; its files stay."""
    return Call("DELETE", build_path("workspaces", name), lambda _: None)


def build_read_call(name: str, path: str) -> Call[FileContent]:
    """Build the call that reads one file."""
    return Call("GET", f"{build_path('workspaces', name, 'files')}/{quote_file_path(path)}", content_from_json)


def build_changes_call(name: str, since: str, timeout_s: float) -> Call[WorkspaceChanges]:
    """Build the call for changes; the service is silent until a change, for at most `timeout_s`."""
    path = build_path("workspaces", name, "changes")
    query: dict[str, Any] = {"since": since, "timeout_s": timeout_s}
    return Call("GET", path, changes_from_json, query=query, silence_s=timeout_s)


def walk_files(name: str) -> Walk[tuple[ListedFile, ...]]:
    """Walk the pages of a workspace's files; returns all."""
    found: list[ListedFile] = []
    after: str | None = ""
    while after is not None:
        query: dict[str, Any] = {"limit": PAGE} | ({"after": after} if after else {})
        page = yield Call("GET", build_path("workspaces", name, "files"), files_from_json, query=query)
        found += page.files
        after = page.next
    return tuple(found)


def walk_snapshot(name: str, *, spans: bool) -> Walk[SnapshotPage]:
    """Walk the pages of a snapshot, all of the version of the first; returns the whole."""
    query: dict[str, Any] = {"limit": PAGE} | ({"spans": "true"} if spans else {})
    path = build_path("workspaces", name, "snapshot")
    found: list[SnapshotFile] = []
    while True:
        page: SnapshotPage = yield Call("GET", path, snapshot_from_json, query=dict(query))
        found += page.files
        if page.next is None:
            return replace(page, files=tuple(found))
        query |= {"after": page.next, "version": page.version}


class Send(Protocol):
    """Sends a call and returns the value of its answer."""

    def __call__(self, call: Call[Value], /) -> Value: ...


class AsyncSend(Protocol):
    """`Send`, to be awaited."""

    def __call__(self, call: Call[Value], /) -> Awaitable[Value]: ...


class ClientWorkspaces:
    """The workspaces that the client's token may see; the one that the service was started with is `default`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def list(self) -> tuple[WorkspaceStatus, ...]:
        """Return the state of each."""
        return self._send(build_list_call())

    def register(self, root: str, name: str | None = None) -> WorkspaceStatus:
        """Register a folder on the service's machine as a workspace, by default under the folder's name.

        Registering the same again has no effect. Raises Forbidden without the scope `admin`, OutsideRoot where the
        service was not started with `--allow-root` for it, Conflict where the name is taken.
        """
        return self._send(build_register_call(root, name))

    def status(self, name: str = DEFAULT) -> WorkspaceStatus:
        """Return the state of one; raises WorkspaceMissing."""
        return self._send(build_status_call(name))

    def remove(self, name: str) -> None:
        """Remove one from the service and end its sessions; its files stay. Raises Forbidden, WorkspaceMissing."""
        self._send(build_remove_call(name))

    def files(self, name: str = DEFAULT) -> tuple[ListedFile, ...]:
        """Return all files by path, without those that git ignores."""
        return self._walk(walk_files(name))

    def read(self, path: str, name: str = DEFAULT) -> FileContent:
        """Return a file's text, encoding and hash; raises FileMissing, OutsideRoot, or BadFile where it is not text."""
        return self._send(build_read_call(name, path))

    def snapshot(self, name: str = DEFAULT, *, spans: bool = False) -> SnapshotPage:
        """Return all files as tokens with hashes, and with the ends of their spans if `spans`; raises NotIndexed."""
        return self._walk(walk_snapshot(name, spans=spans))

    def changes(self, since: str, name: str = DEFAULT, *, timeout_s: float = WAIT_SECONDS) -> WorkspaceChanges:
        """Wait for changes since a version and return them; no changes after `timeout_s` without one.

        `since` is the `version` of a snapshot or of earlier changes; raises SnapshotGone where it is too old.
        """
        return self._send(build_changes_call(name, since, timeout_s))

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
    """`ClientWorkspaces` for an event loop."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def list(self) -> tuple[WorkspaceStatus, ...]:
        """See `ClientWorkspaces.list`."""
        return await self._send(build_list_call())

    async def register(self, root: str, name: str | None = None) -> WorkspaceStatus:
        """See `ClientWorkspaces.register`."""
        return await self._send(build_register_call(root, name))

    async def status(self, name: str = DEFAULT) -> WorkspaceStatus:
        """See `ClientWorkspaces.status`."""
        return await self._send(build_status_call(name))

    async def remove(self, name: str) -> None:
        """See `ClientWorkspaces.remove`."""
        await self._send(build_remove_call(name))

    async def files(self, name: str = DEFAULT) -> tuple[ListedFile, ...]:
        """See `ClientWorkspaces.files`."""
        return await self._walk(walk_files(name))

    async def read(self, path: str, name: str = DEFAULT) -> FileContent:
        """See `ClientWorkspaces.read`."""
        return await self._send(build_read_call(name, path))

    async def snapshot(self, name: str = DEFAULT, *, spans: bool = False) -> SnapshotPage:
        """See `ClientWorkspaces.snapshot`."""
        return await self._walk(walk_snapshot(name, spans=spans))

    async def changes(self, since: str, name: str = DEFAULT, *, timeout_s: float = WAIT_SECONDS) -> WorkspaceChanges:
        """See `ClientWorkspaces.changes`."""
        return await self._send(build_changes_call(name, since, timeout_s))

    async def _walk(self, walk: Walk[Whole]) -> Whole:
        value: Any = None
        while True:
            try:
                call = walk.send(value)
            except StopIteration as end:
                whole: Whole = end.value
                return whole
            value = await self._send(call)


def status_from_json(answer: Mapping[str, Any]) -> WorkspaceStatus:
    """Parse the answer of `GET /workspaces/{name}`."""
    from agent_runtime.server.views import WorkspaceStatus

    return make_value(WorkspaceStatus, answer)


def files_from_json(answer: Mapping[str, Any]) -> FilePage:
    """Parse the answer of `GET /workspaces/{name}/files`."""
    from agent_runtime.workspace.registry import FilePage, ListedFile

    return FilePage(tuple(make_value(ListedFile, file) for file in answer["files"]), answer["next"])


def content_from_json(answer: Mapping[str, Any]) -> FileContent:
    """Parse the answer of `GET /workspaces/{name}/files/{path}`."""
    from agent_runtime.server.views import FileContent

    return make_value(FileContent, answer)


def snapshot_from_json(answer: Mapping[str, Any]) -> SnapshotPage:
    """Parse the answer of `GET /workspaces/{name}/snapshot`."""
    from agent_runtime.server.views import SnapshotFile, SnapshotPage

    def parse_file(file: Mapping[str, Any]) -> SnapshotFile:
        spans = file.get("spans")
        return make_value(SnapshotFile, file, spans=None if spans is None else tuple(spans))

    return make_value(SnapshotPage, answer, files=tuple(parse_file(file) for file in answer["files"]))


def changes_from_json(answer: Mapping[str, Any]) -> WorkspaceChanges:
    """Parse the answer of `GET /workspaces/{name}/changes`."""
    from agent_runtime.server.views import ChangedFile, WorkspaceChanges

    return make_value(
        WorkspaceChanges, answer, changes=tuple(make_value(ChangedFile, each) for each in answer["changes"])
    )
