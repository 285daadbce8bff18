"""Backends of an MCP session: a local folder, or a workspace of a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.result import decode
from agent_runtime.apply.rule_process import RuleProcesses
from agent_runtime.certainty import WRITE_CERTAINTY, Certainty, find_surest
from agent_runtime.client import Client, Phase, Stream, Tokens, WorkspaceRequest
from agent_runtime.client.calls import Undo, UndoneFile
from agent_runtime.errors import Cancelled, Stale
from agent_runtime.files import MAX_EDIT_BYTES, check_size
from agent_runtime.llm.interface import ModelOnDemand
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, ApplyResult, Mode, Options, PatchRequest, Reader
from agent_runtime.workspace.history import History
from agent_runtime.workspace.registry import DEFAULT
from agent_runtime.workspace.undo import undo_in_workspace
from agent_runtime.workspace.workspace import Workspace, write_if_merged


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's whole text, the Python codec of its bytes, and their hash."""

    path: str
    text: str
    encoding: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """An edit that an agent asks for; without `write` the file stays as it is, without `path` it names its files."""

    edit: str
    path: str = ""
    instruction: str = ""
    expected_sha256: str | None = None
    base_sha256: str | None = None
    write: bool = True
    min_certainty: Certainty | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """Where the files are and where edits are merged: `root` of a folder, `url` and `workspace` of a service, or both.

    model: merges where no rule decides; None if unknown. model_state: whether it is loaded. details: the service's
    state of the workspace.
    """

    model_state: str
    root: str | None = None
    url: str | None = None
    workspace: str | None = None
    model: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def build_options(edit: Edit, given: Options) -> dict[str, Any]:
    """Build the options of one edit; the mode is never `model`, whatever the server was started with.

    Nobody sees a merge before it is written, so its certainty must be at least `WRITE_CERTAINTY`, or the server's own
    minimum. An edit may ask for more, never for less.
    """
    mode: Mode = "auto" if given.mode == "model" else given.mode
    floor = given.min_certainty or WRITE_CERTAINTY
    least = find_surest((floor, edit.min_certainty or floor))
    return given.options() | {"instruction": edit.instruction, "mode": mode, "min_certainty": least}


class Backend(Protocol):
    """Reads files and merges edits into them. Thread-safe."""

    def read(self, path: str) -> FileText:
        """Read one file; raises BadFile or NoConnection."""
        ...

    def edit(self, edit: Edit, context: RequestContext, progress: ProgressListener) -> ApplyResult:
        """Merge an edit, and write the result if `write` is set and no check rejects it.

        Raises Stale, EditRefused, BadFile, ModelUnavailable and other errors of a merge.
        """
        ...

    def undo(self, write_id: str | None) -> Undo:
        """Put the files of a write back, by default of the last one; raises NoSuchWrite, Stale or BadFile."""
        ...

    def status(self) -> BackendStatus:
        """Return where the files are and the model's state; raises NoConnection."""
        ...

    def close(self) -> None:
        """Cancel the running edits; no more are accepted."""
        ...


def follow_stream(events: Stream[ApplyResult], context: RequestContext, progress: ProgressListener) -> ApplyResult:
    """Report a stream's progress and return its answer; raises Cancelled, with the stream closed, once it is cancelled.

    Cancellation takes effect at the next event: the service sends one for every phase and every forward pass.
    """
    num_tokens = 0
    with events:
        for event in events:
            if not isinstance(event, Phase | Tokens):
                return event
            if context.cancel.is_cancelled:
                break
            if isinstance(event, Phase):
                progress.on_phase(event.name)
            else:
                num_tokens += len(event.pieces)
                progress.on_tokens(num_tokens)
    raise Cancelled("the client has disconnected; the work at the service is cancelled")


Apply = Callable[[ApplyRequest, RequestContext, ProgressListener], ApplyResult]
ApplyPatch = Callable[[PatchRequest, Reader, RequestContext, ProgressListener], ApplyResult]


@dataclass(frozen=True, slots=True)
class EditApplier:
    """Merges edits in this process or through a service; `status` describes it, `close` ends it."""

    apply: Apply
    apply_patch: ApplyPatch
    status: Callable[[], BackendStatus]
    close: Callable[[], None]


class LocalBackend:
    """Files below `root`, a folder of this machine; a path is relative to it, or absolute and below it."""

    def __init__(
        self,
        root: Path,
        applier: EditApplier,
        *,
        options: Options | None = None,
        journals: Path | None = None,
        history: History | None = None,
    ) -> None:
        """Open the folder; `options` are the defaults of every edit, `journals` and `history` as in `Workspace`."""
        self._given = root.absolute()
        self._workspace = Workspace(root, journals, history=history)
        self._applier = applier
        self._options = options or Options()

    def read(self, path: str) -> FileText:
        """Read one file; raises BadFile."""
        path = self._relative(path)
        data = self._workspace.read_and_keep(path)
        encoding = decode(data, path).encoding
        return FileText(path, data.decode(encoding), encoding, sha256(data).hexdigest())

    def edit(self, edit: Edit, context: RequestContext, progress: ProgressListener) -> ApplyResult:
        """Merge an edit and write it, unless the file is not the expected one or has changed meanwhile."""
        check_size(len(edit.edit), "the edit", MAX_EDIT_BYTES)
        options = build_options(edit, self._options)
        if edit.path:
            result = self._applier.apply(self._build_request(edit, options), context, progress)
        else:
            patch = PatchRequest(edit.edit, **options)
            result = self._applier.apply_patch(patch, self._workspace.read_if_there, context, progress)
        return write_if_merged(self._workspace, result, context.cancel) if edit.write else result

    def _build_request(self, edit: Edit, options: Mapping[str, Any]) -> ApplyRequest:
        """Read the file, and the base of the edit if it is another one; raises Stale."""
        path = self._relative(edit.path)
        data = self._workspace.read(path)
        current = sha256(data).hexdigest()
        if edit.expected_sha256 not in (None, current):
            raise Stale(f"{path} is not what the edit was made for; read it again", current_sha256=current)
        base = self._workspace.versions.find_base(path, edit.base_sha256, data)
        return ApplyRequest(data, edit.edit, path, base=base, **options)

    def undo(self, write_id: str | None) -> Undo:
        """Put the files of a write in this folder back."""
        write = undo_in_workspace(self._workspace, write_id)
        files = tuple(UndoneFile(file.path, file.before, file.after) for file in write.files)
        return Undo(write.id, write.undoes or "", files)

    def status(self) -> BackendStatus:
        """Return the folder and the model's state."""
        return replace(self._applier.status(), root=str(self._workspace.root))

    def close(self) -> None:
        self._applier.close()

    def _relative(self, path: str) -> str:
        """Return a path relative to the folder; one outside it is unchanged, and is refused when it is read."""
        given = Path(path)
        for root in (self._workspace.root, self._given):
            if given.is_absolute() and given.is_relative_to(root):
                return given.relative_to(root).as_posix()
        return path


def make_local_applier(model: ModelOnDemand, aside: RuleProcesses | None = None) -> EditApplier:
    """Merge in this process: by rules, for large texts in the process `aside` if given, else by the model."""

    def status() -> BackendStatus:
        return BackendStatus(model=model.name, model_state="loaded" if model.is_ready else "loaded when needed")

    def close() -> None:
        if model.is_ready:
            model.close()
        if aside is not None:
            aside.close()

    applier = Applier(model.get, aside)
    return EditApplier(applier.apply, applier.apply_patch, status, close)


def make_remote_applier(client: Client, url: str) -> EditApplier:
    """Merge through a service, to which the file's text is sent."""

    def status() -> BackendStatus:
        return BackendStatus(model_state="loaded" if client.is_ready() else "not loaded yet", url=url)

    def apply(request: ApplyRequest, context: RequestContext, progress: ProgressListener) -> ApplyResult:
        return follow_stream(client.stream(request), context, progress)

    def apply_patch(
        request: PatchRequest, read: Reader, context: RequestContext, progress: ProgressListener
    ) -> ApplyResult:
        return client.apply_patch(request, read)

    return EditApplier(apply, apply_patch, status, client.close)


class RemoteBackend:
    """Files of a service's workspace, which the service reads and writes."""

    def __init__(self, client: Client, url: str, workspace: str = DEFAULT, *, options: Options | None = None) -> None:
        """Use the service's workspace of that name, by default the folder that it was started with."""
        self._client = client
        self._url = url
        self._workspace = workspace
        self._options = options or Options()

    def read(self, path: str) -> FileText:
        """Read one file of the service."""
        file = self._client.workspaces.read(path, self._workspace)
        return FileText(file.path, file.text, file.encoding, file.sha256)

    def edit(self, edit: Edit, context: RequestContext, progress: ProgressListener) -> ApplyResult:
        """Let the service merge and write, unless the file is not the expected one."""
        check_size(len(edit.edit), "the edit", MAX_EDIT_BYTES)
        request = WorkspaceRequest(
            edit=edit.edit,
            path=edit.path,
            workspace=self._workspace,
            expected_sha256=edit.expected_sha256,
            base_sha256=edit.base_sha256,
            **build_options(edit, self._options),
        )
        return follow_stream(self._client.stream(request, write=edit.write), context, progress)

    def undo(self, write_id: str | None) -> Undo:
        """Have the service put the files back."""
        return self._client.undo(write_id, workspace=self._workspace)

    def status(self) -> BackendStatus:
        """Return the service's state of the workspace."""
        state = "loaded" if self._client.is_ready() else "not loaded yet"
        details = asdict(self._client.workspaces.status(self._workspace))
        return BackendStatus(url=self._url, workspace=self._workspace, model_state=state, details=details)

    def close(self) -> None:
        self._client.close()
