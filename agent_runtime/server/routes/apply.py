"""What a request asks for: one file or several, each checked and fetched, and the call that does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256

from agent_runtime.apply.applier import Applier
from agent_runtime.errors import BadRequest, OutsideRoot, Stale
from agent_runtime.files.limits import MAX_EDIT_BYTES, MAX_FILE_BYTES, check_size
from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.schema import ApplyBody, FileBody, text_of
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader
from agent_runtime.workspaces.workspace import Workspace
from editor.codec import to_bytes
from editor.errors import CodecError

Work = Callable[[Watcher], ApplyResult]


def work_of(applier: Applier, workspace: Workspace | None, body: ApplyBody, salt: str = "") -> Work:
    """Check what the schema cannot, fetch the files, and return the call that applies the edit.

    `salt` is the tenant's: what is computed for one is taken for no other. What is to be written comes from the
    workspace.
    """
    if body.write:
        _refuse_texts_to_write(workspace, body)
    if body.files is not None:
        _refuse_single_fields(body)
        return _several(applier, workspace, body, body.files, salt)
    edit = _edit(body.edit, "edit")
    if body.path is None and body.original is None and workspace is not None:
        for name in ("prediction", "expected_sha256"):
            if getattr(body, name) is not None:
                raise BadRequest(f"{name!r} is of one file: name it by 'path', or give 'original'", field=name)
        patch = PatchRequest(edit, **body.options(salt), root=str(workspace.root))
        return partial(applier.apply_patch, patch, workspace.read_if_there)
    return partial(applier.apply, _request(workspace, body, body, salt))


def _several(applier: Applier, workspace: Workspace | None, body: ApplyBody, files: list[FileBody], salt: str) -> Work:
    twice = [path for path, count in Counter(file.path for file in files if file.path).items() if count > 1]
    if twice:
        raise BadRequest(f"'files' holds {twice[0]} twice", field="files")
    if body.edit is None:
        if not files:
            raise BadRequest("'files' is empty, and there is no 'edit' that names its files", field="files")
        requests = [_request(workspace, file, body, salt) for file in files]
        return partial(applier.apply_each, requests)
    if any(file.edit is not None for file in files):
        raise BadRequest("give 'edit' once: for each file, or beside 'files' for all", field="edit")
    if any(file.prediction is not None for file in files):
        raise BadRequest("a file has a prediction where it has its own 'edit'", field="prediction")
    root = "" if workspace is None or any(file.original is not None for file in files) else str(workspace.root)
    request = PatchRequest(_edit(body.edit, "edit"), **body.options(salt), root=root)
    return partial(applier.apply_patch, request, _reader(workspace, files))


def _refuse_texts_to_write(workspace: Workspace | None, body: ApplyBody) -> None:
    if any(file.original is not None for file in (body, *(body.files or ()))):
        raise BadRequest(
            "only files of a workspace are written: name them by 'path' and leave out 'original'", field="write"
        )
    if workspace is None:
        raise OutsideRoot("this service has no files that it could write: start it with --root DIR")


def _refuse_single_fields(body: ApplyBody) -> None:
    for name in ("path", "original", "expected_sha256", "prediction"):
        if getattr(body, name) is not None:
            raise BadRequest(f"beside 'files' there is no {name!r}; give it for each file", field=name)


def _request(workspace: Workspace | None, file: ApplyBody | FileBody, body: ApplyBody, salt: str) -> ApplyRequest:
    edit = _edit(file.edit, "edit" if file is body else "files")
    prediction = text_of(file.prediction)
    original, root = _current(workspace, file), "" if workspace is None or file.original is not None else workspace.root
    return ApplyRequest(original, edit, file.path or "", prediction, **body.options(salt), root=str(root))


def _reader(workspace: Workspace | None, files: list[FileBody]) -> Reader:
    """Read from the texts that were sent; without any, below the root, with the hashes held to."""
    if files and all(file.original is None for file in files):
        read = {file.path or "": _current(workspace, file) for file in files}
        assert workspace is not None
        return partial(_read_once, read, workspace)
    if any(file.path is None or file.original is None for file in files):
        raise BadRequest("beside an edit of all, each of 'files' has 'path' and 'original'", field="files")
    return {file.path: _current(workspace, file) for file in files if file.path is not None}.get


def _read_once(read: dict[str, bytes], workspace: Workspace, path: str) -> bytes | None:
    """The bytes whose hash was looked at: the file may be another one by now."""
    return read[path] if path in read else workspace.read_if_there(path)


def _current(workspace: Workspace | None, file: ApplyBody | FileBody) -> bytes:
    """The file's bytes; raises Stale where they are not those that the sender believes."""
    original = _original(workspace, file)
    current = sha256(original).hexdigest()
    if file.expected_sha256 not in (None, current):
        name = file.path or "the file"
        raise Stale(f"{name} is not what the edit was made for; read it again", current_sha256=current)
    return original


def _original(workspace: Workspace | None, file: ApplyBody | FileBody) -> bytes:
    if file.original is not None:
        try:
            original = to_bytes(file.original, file.encoding)
        except CodecError as error:
            raise BadRequest(f"'original' is not in {file.encoding}: {error}", field="original") from error
        check_size(len(original), "the file", MAX_FILE_BYTES)
        return original
    if file.path is None:
        raise BadRequest("give 'original', the file's text, or 'path', a file below the service's root", field="path")
    if workspace is None:
        raise OutsideRoot("this service reads no files: send 'original', or start it with --root DIR")
    return workspace.read(file.path)


def _edit(edit: str | None, field: str) -> str:
    if edit is None:
        raise BadRequest("there is no 'edit', neither for each file nor for all", field=field)
    check_size(len(edit), "the edit", MAX_EDIT_BYTES)
    return edit
