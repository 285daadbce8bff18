"""One file of a workspace as text."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from agent_runtime.apply.outcome import decode
from agent_runtime.workspaces.workspace import Workspace


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file; `text`, a BOM and line endings included, in `encoding` gives the bytes that hash and size are of."""

    path: str
    text: str
    encoding: str
    sha256: str
    size: int


def file_content(workspace: Workspace, path: str) -> FileContent:
    """A file, ignored or not; raises what `Workspace.read` raises, BadFile for one that is no text."""
    data = workspace.read(path)
    encoding = decode(data, path).encoding
    return FileContent(path, data.decode(encoding), encoding, sha256(data).hexdigest(), len(data))
