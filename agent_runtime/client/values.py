"""Parses answers about workspaces and sessions.

Unknown fields, of a later version, are ignored; missing ones raise KeyError or TypeError. Types of workspaces and
sessions are imported when needed: they load the tokenizer's library, which merging edits does not need.
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
    """Parse the answer of `GET /workspaces/{name}`."""
    from agent_runtime.server.views import WorkspaceStatus

    return _make_value(WorkspaceStatus, answer)


def files_from_json(answer: Mapping[str, Any]) -> FilePage:
    """Parse the answer of `GET /workspaces/{name}/files`."""
    from agent_runtime.workspace.registry import FilePage, ListedFile

    return FilePage(tuple(_make_value(ListedFile, file) for file in answer["files"]), answer["next"])


def content_from_json(answer: Mapping[str, Any]) -> FileContent:
    """Parse the answer of `GET /workspaces/{name}/files/{path}`."""
    from agent_runtime.server.views import FileContent

    return _make_value(FileContent, answer)


def snapshot_from_json(answer: Mapping[str, Any]) -> SnapshotPage:
    """Parse the answer of `GET /workspaces/{name}/snapshot`."""
    from agent_runtime.server.views import SnapshotFile, SnapshotPage

    files = tuple(_make_value(SnapshotFile, file, spans=_parse_spans(file.get("spans"))) for file in answer["files"])
    return _make_value(SnapshotPage, answer, files=files)


def changes_from_json(answer: Mapping[str, Any]) -> WorkspaceChanges:
    """Parse the answer of `GET /workspaces/{name}/changes`."""
    from agent_runtime.server.views import ChangedFile, WorkspaceChanges

    return _make_value(
        WorkspaceChanges, answer, changes=tuple(_make_value(ChangedFile, each) for each in answer["changes"])
    )


def read_from_json(answer: Mapping[str, Any]) -> tuple[ReadFile, ...]:
    """Parse the answer of `POST /sessions/{id}/read`."""
    from agent_runtime.session import ReadFile

    return tuple(_make_value(ReadFile, file) for file in answer["files"])


def answer_from_json(answer: Mapping[str, Any]) -> SessionAnswer:
    """Parse the answer of `POST /sessions/{id}/ask`."""
    from agent_runtime.session import SessionAnswer

    usage, noted = usage_from_json(answer["usage"]), tuple(answer["noted"])
    return _make_value(
        SessionAnswer,
        answer,
        usage=usage,
        timings=dict(answer["timings"]),
        files=_parse_seen_files(answer),
        noted=noted,
    )


def state_from_json(answer: Mapping[str, Any]) -> SessionState:
    """Parse the answer of `GET /sessions/{id}`."""
    from agent_runtime.session import HistoryMessage, SessionState

    return _make_value(
        SessionState,
        answer,
        files=_parse_seen_files(answer),
        messages=tuple(_make_value(HistoryMessage, message) for message in answer["messages"]),
        usage=usage_from_json(answer["usage"]),
        turns=tuple(usage_from_json(turn) for turn in answer["turns"]),
    )


def _parse_seen_files(answer: Mapping[str, Any]) -> tuple[SeenFile, ...]:
    from agent_runtime.session import SeenFile

    return tuple(_make_value(SeenFile, file) for file in answer["files"])


def _parse_spans(spans: list[int] | None) -> tuple[int, ...] | None:
    return None if spans is None else tuple(spans)


def _make_value(cls: type[Value], values: Mapping[str, Any], **made: Any) -> Value:
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # all of them are dataclasses
    return cls(**{name: value for name, value in values.items() if name in names} | made)
