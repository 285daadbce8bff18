"""Values of the API out of JSON; fields of a later version are passed over, missing ones are a KeyError or TypeError.

What belongs to workspaces and sessions is imported when it comes: it brings the tokenizer's library along, and who only
has edits merged needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from agent_runtime.serialization import usage_from_json

if TYPE_CHECKING:
    from agent_runtime.server.views import FileContent, SnapshotPage, WorkspaceChanges, WorkspaceStatus
    from agent_runtime.session import ReadFile, SeenFile, SessionAnswer, SessionState
    from agent_runtime.workspace.registry import FilePage

Value = TypeVar("Value")


def status_from_json(answer: Mapping[str, Any]) -> WorkspaceStatus:
    """Of `GET /workspaces/{name}`."""
    from agent_runtime.server.views import WorkspaceStatus

    return _known(WorkspaceStatus, answer)


def files_from_json(answer: Mapping[str, Any]) -> FilePage:
    """Of `GET /workspaces/{name}/files`."""
    from agent_runtime.workspace.registry import FilePage, ListedFile

    return FilePage(tuple(_known(ListedFile, file) for file in answer["files"]), answer["next"])


def content_from_json(answer: Mapping[str, Any]) -> FileContent:
    """Of `GET /workspaces/{name}/files/{path}`."""
    from agent_runtime.server.views import FileContent

    return _known(FileContent, answer)


def snapshot_from_json(answer: Mapping[str, Any]) -> SnapshotPage:
    """Of `GET /workspaces/{name}/snapshot`."""
    from agent_runtime.server.views import SnapshotFile, SnapshotPage

    files = tuple(_known(SnapshotFile, file, spans=_ends(file.get("spans"))) for file in answer["files"])
    return _known(SnapshotPage, answer, files=files)


def changes_from_json(answer: Mapping[str, Any]) -> WorkspaceChanges:
    """Of `GET /workspaces/{name}/changes`."""
    from agent_runtime.server.views import ChangedFile, WorkspaceChanges

    return _known(WorkspaceChanges, answer, changes=tuple(_known(ChangedFile, each) for each in answer["changes"]))


def read_from_json(answer: Mapping[str, Any]) -> tuple[ReadFile, ...]:
    """Of `POST /sessions/{id}/read`."""
    from agent_runtime.session import ReadFile

    return tuple(_known(ReadFile, file) for file in answer["files"])


def answer_from_json(answer: Mapping[str, Any]) -> SessionAnswer:
    """Of `POST /sessions/{id}/ask`."""
    from agent_runtime.session import SessionAnswer

    usage, noted = usage_from_json(answer["usage"]), tuple(answer["noted"])
    return _known(SessionAnswer, answer, usage=usage, timings=dict(answer["timings"]), files=_seen(answer), noted=noted)


def state_from_json(answer: Mapping[str, Any]) -> SessionState:
    """Of `GET /sessions/{id}`."""
    from agent_runtime.session import HistoryMessage, SessionState

    return _known(
        SessionState,
        answer,
        files=_seen(answer),
        messages=tuple(_known(HistoryMessage, message) for message in answer["messages"]),
        usage=usage_from_json(answer["usage"]),
        turns=tuple(usage_from_json(turn) for turn in answer["turns"]),
    )


def _seen(answer: Mapping[str, Any]) -> tuple[SeenFile, ...]:
    from agent_runtime.session import SeenFile

    return tuple(_known(SeenFile, file) for file in answer["files"])


def _ends(spans: list[int] | None) -> tuple[int, ...] | None:
    return None if spans is None else tuple(spans)


def _known(cls: type[Value], values: Mapping[str, Any], **made: Any) -> Value:
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # all of them are dataclasses
    return cls(**{name: value for name, value in values.items() if name in names} | made)
