"""The calls about workspaces; what comes in pages is a walk, which yields calls, is sent values, returns the whole."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from agent_runtime.client import values
from agent_runtime.client.call import Call, below, path_of

if TYPE_CHECKING:
    from agent_runtime.browsing import FileContent, SnapshotFile, SnapshotPage, WorkspaceChanges, WorkspaceStatus
    from agent_runtime.workspaces.listing import ListedFile

DEFAULT = "default"
"""The workspace that the service was started with."""

PAGE = 10_000
WAIT_SECONDS = 25.0

Whole = TypeVar("Whole")
Walk = Generator[Call[Any], Any, Whole]


def list_call() -> Call[tuple[WorkspaceStatus, ...]]:
    """All that the token may see."""
    return Call(
        "GET",
        "/workspaces",
        lambda answer: tuple(values.status_from_json(each) for each in answer["workspaces"]),
    )


def register_call(root: str, name: str | None) -> Call[WorkspaceStatus]:
    """Again the same does nothing."""
    body = {"root": root} | ({"name": name} if name is not None else {})
    return Call("POST", "/workspaces", values.status_from_json, body, changes_nothing=True)


def status_call(name: str) -> Call[WorkspaceStatus]:
    """Of one."""
    return Call("GET", path_of("workspaces", name), values.status_from_json)


def remove_call(name: str) -> Call[None]:
    """Its files stay."""
    return Call("DELETE", path_of("workspaces", name), lambda _: None)


def read_call(name: str, path: str) -> Call[FileContent]:
    """One file."""
    return Call("GET", f"{path_of('workspaces', name, 'files')}/{below(path)}", values.content_from_json)


def changes_call(name: str, since: str, timeout_s: float) -> Call[WorkspaceChanges]:
    """The service is silent until something changes, or for `timeout_s`."""
    path = path_of("workspaces", name, "changes")
    query: dict[str, Any] = {"since": since, "timeout_s": timeout_s}
    return Call("GET", path, values.changes_from_json, query=query, silence_s=timeout_s)


def files_walk(name: str) -> Walk[tuple[ListedFile, ...]]:
    """All files of a workspace."""
    found: list[ListedFile] = []
    after: str | None = ""
    while after is not None:
        query: dict[str, Any] = {"limit": PAGE} | ({"after": after} if after else {})
        page = yield Call("GET", path_of("workspaces", name, "files"), values.files_from_json, query=query)
        found += page.files
        after = page.next
    return tuple(found)


def snapshot_walk(name: str, *, spans: bool) -> Walk[SnapshotPage]:
    """A whole snapshot: the pages behind the first are of its version."""
    query: dict[str, Any] = {"limit": PAGE} | ({"spans": "true"} if spans else {})
    path = path_of("workspaces", name, "snapshot")
    found: list[SnapshotFile] = []
    while True:
        page: SnapshotPage = yield Call("GET", path, values.snapshot_from_json, query=dict(query))
        found += page.files
        if page.next is None:
            return replace(page, files=tuple(found))
        query |= {"after": page.next, "version": page.version}
