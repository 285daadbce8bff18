"""Merges an edit into a file of this machine, and undoes it: the one-line calls of the SDK."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import BadRequest
from agent_runtime.files import read_file
from agent_runtime.llm.interface import Merger
from agent_runtime.models.config import NO_MODEL, LoadOptions, ModelSettings
from agent_runtime.types import ApplyRequest, ApplyResult, EditInput
from agent_runtime.workspace.history import History, Write
from agent_runtime.workspace.undo import run_or_undo, undo_write
from agent_runtime.workspace.workspace import replace_file


def apply(
    path: str | Path,
    edit: EditInput,
    *,
    write: bool = False,
    then: str | Sequence[str] = "",
    model: str | None = None,
    **options: Any,
) -> ApplyResult:
    """Merge an edit into the file at `path`, in this process.

    edit: in any format, see docs/api.md; one in JSON may be given as its objects. write: replace the file, atomically
    (`hunk undo` puts it back); without it nothing is written. then: a command that runs after the write, such as
    "pytest -q", or a program with its arguments; if it does not end with 0, the write is undone. model: a catalogue
    name or a path; it is loaded by the first edit that no rule decides, and kept. None: rules only. options: those of
    `ApplyRequest`, such as `min_certainty` and `base`.

    The result's `status` is `merged`, `noop`, or `rejected` if a check rejects the merge, which is then not written.
    Raises EditRefused where the edit does not apply or `then` fails, FileMissing, Stale if the file changed meanwhile,
    ModelUnavailable, and other errors of `hunk.errors`, and OSError if `then` cannot be started; the file is then
    unchanged.
    """
    if then and not write:
        raise BadRequest("'then' runs after a write: give write=True", field="then")
    path = Path(path)
    request = ApplyRequest(read_file(path), edit, str(path), **options)
    result = _make_applier(model or NO_MODEL).apply(request)
    if write and result.status == "merged":
        cache_dir = ModelSettings.from_env(os.environ).cache_dir
        history = History.from_env(os.environ, cache_dir)
        if then and not history.is_on:
            raise BadRequest("'then' needs a history that can undo the write: HUNK_HISTORY is 0", field="then")
        data, before = result.file.data, result.file.sha256_before
        write_id = replace_file(path, data, expected_sha256=before, history=history)
        if then:
            run_or_undo(then, write_id, history, cache_dir / "journals")
        return replace(result, written=True, write_id=write_id)
    return result


def undo(write_id: str | None = None, *, root: str | Path = ".") -> Write:
    """Put the files of a write back as they were before it, all or none; return the write that did.

    write_id: of `hunk log`; None: the last write of a file in `root` that was not undone. It may have been made by
    `apply`, the command, a service or an MCP server of this user.

    Raises NoSuchWrite if there is none, Stale if one of its files has changed since, and BadFile; nothing is changed
    then.
    """
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    history = History(cache_dir / "history")
    write = history.find_last(Path(root).resolve()) if write_id is None else history.find(write_id)
    return undo_write(history, write, cache_dir / "journals")


@cache
def _make_applier(model: str) -> Applier:
    @cache
    def open_merger() -> Merger:
        from agent_runtime.wiring import open_merger

        settings = ModelSettings.from_env(os.environ)
        return open_merger(model, settings, LoadOptions(kv_sequences=1))

    return Applier(open_merger)
