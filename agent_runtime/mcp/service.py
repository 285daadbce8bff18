"""A workspace of a running service as the place of an agent's files."""

from __future__ import annotations

from dataclasses import asdict

from agent_runtime.client import Client, WorkspaceRequest
from agent_runtime.files.limits import MAX_EDIT_BYTES, check_size
from agent_runtime.generation.watcher import Watcher
from agent_runtime.mcp.following import followed
from agent_runtime.mcp.places import Edit, FileText, PlaceStatus, options_of
from agent_runtime.types import ApplyResult, Options
from agent_runtime.workspaces.registry import DEFAULT


class ServicePlace:
    """The files are where the service is, and it writes them; nothing of this machine is read."""

    def __init__(self, client: Client, url: str, workspace: str = DEFAULT, *, options: Options | None = None) -> None:
        """`workspace` is a name that the service knows, by default the folder that it was started with."""
        self._client = client
        self._url = url
        self._workspace = workspace
        self._options = options or Options()

    def read(self, path: str) -> FileText:
        """One file, as the service has it."""
        file = self._client.workspaces.read(path, self._workspace)
        return FileText(file.path, file.text, file.encoding, file.sha256)

    def edit(self, edit: Edit, watcher: Watcher) -> ApplyResult:
        """Have the service merge and write, both if the file is what the agent believes."""
        check_size(len(edit.edit), "the edit", MAX_EDIT_BYTES)
        request = WorkspaceRequest(
            edit=edit.edit,
            path=edit.path,
            workspace=self._workspace,
            expected_sha256=edit.expected_sha256,
            **options_of(edit, self._options),
        )
        return followed(self._client.stream(request, write=edit.write), watcher)

    def status(self) -> PlaceStatus:
        """What the service says of the workspace."""
        state = "loaded" if self._client.is_ready() else "not loaded yet"
        details = asdict(self._client.workspaces.status(self._workspace))
        return PlaceStatus(url=self._url, workspace=self._workspace, model_state=state, details=details)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
