"""What a client can ask beside the edits of files that it sends along: edits of files that the service reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_runtime.types import Options


@dataclass(frozen=True, slots=True)
class WorkspaceRequest(Options):
    """One edit of a file of a workspace of the service, or, without `path`, of the files that the edit names.

    workspace: its name; None: the folder that the service was started with. expected_sha256: of the file as the sender
    believes it to be, or of several by path; the service refuses the edit where one has another. prediction: what the
    whole file is expected to be after the edit.
    """

    edit: str
    path: str = ""
    workspace: str | None = None
    expected_sha256: str | Mapping[str, str] | None = None
    prediction: str | None = None
