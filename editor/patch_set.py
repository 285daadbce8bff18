"""Applies edits of several files, all or none.

Each edit is applied to the result of the edits before it. Refused are: creating a file that exists, or moving onto one
(unless the same diff moves or deletes that one); updating, moving or deleting a missing file; deleting a file whose
text differs from the text that the diff deletes; changing and then deleting a file; absolute paths and paths with `..`.

A set that is applied a second time is recognised: created files are there with the same text, moved files are only at
their new path with the hunks applied, hunks are applied, and deleted files are missing if all else is applied.

With `compat`, V4A is applied as Codex does it: Add and Move overwrite, the first match wins, and the edits before the
first failure are kept in `partial`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from posixpath import normpath

from editor.execution import check_stopped
from editor.grammars import find_language
from editor.hunks.apply import merge_hunks
from editor.merge import merge
from editor.types import Action, AlreadyApplied, Merged, MergeOutcome, ParsedEdit, ReasonCode, Unresolved


@dataclass(frozen=True, slots=True)
class FileResult:
    """The result of one edit: `text` is the new text at `new_path`, None if there is none (deleted, refused).

    `new_path` is `path` unless the file is moved.
    """

    path: str
    action: Action
    new_path: str
    outcome: MergeOutcome
    text: str | None

    @property
    def ok(self) -> bool:
        """Return whether the edit is certain, or already applied."""
        return not isinstance(self.outcome, Unresolved)


@dataclass(frozen=True, slots=True)
class PatchResult:
    """One `FileResult` for each edit, in order, and the files to write.

    `writes` maps each path that changes to its new text, None for a deleted file; it is empty if any edit is refused.
    `partial` are the writes of the edits before the first refused one; it is only filled with `compat`.
    """

    files: tuple[FileResult, ...]
    writes: Mapping[str, str | None]
    partial: Mapping[str, str | None]

    @property
    def refusals(self) -> tuple[FileResult, ...]:
        """Return the edits that are not certain; none if the set can be written."""
        return tuple(file for file in self.files if not file.ok)


def list_paths(edits: Sequence[ParsedEdit]) -> tuple[str, ...]:
    """Return the paths that `merge_files` reads or writes, each once, in order.

    The caller reads those that exist; paths that would be refused are left out.
    """
    named = [_clean_path(path) for edit in edits for path in (edit.path, edit.move_to) if path]
    return tuple(dict.fromkeys(path for path in named if _find_path_fault(path) is None))


def merge_files(files: Mapping[str, str], edits: Sequence[ParsedEdit], *, compat: bool = False) -> PatchResult:
    r"""Apply the edits to texts with "\n" lines; `files` maps existing paths of `list_paths(edits)` to their texts."""
    edits = [replace(edit, path=_clean_path(edit.path), move_to=_clean_path(edit.move_to)) for edit in edits]
    tree = _Tree(dict(files), compat, _find_leaving_paths(edits))
    results: list[FileResult] = []
    for edit in edits:
        check_stopped()
        results.append(tree.apply(edit))
        if compat and not results[-1].ok:
            break
    if not compat:
        results = _accept_missing_deletions(results)
    changed = {path: text for path, text in tree.changed.items() if files.get(path) != text}
    whole = all(result.ok for result in results)
    return PatchResult(tuple(results), changed if whole else {}, changed if compat else {})


@dataclass(slots=True)
class _Tree:
    """The files after the edits so far.

    `leaving` are the paths that a diff moves or deletes: all paths of a diff mean the files before it, so another file
    may take such a path before its old file is gone. `arrived` holds these files until then.
    """

    present: dict[str, str]
    compat: bool
    leaving: frozenset[str]
    changed: dict[str, str | None] = field(default_factory=dict)
    arrived: dict[str, str] = field(default_factory=dict)

    def apply(self, edit: ParsedEdit) -> FileResult:
        fault = _find_path_fault(edit.path) or (edit.move_to and _find_path_fault(edit.move_to))
        if fault:
            return _refuse(edit, "malformed", fault, "Name the file by its path relative to the root, without '..'.")
        if edit.action == "create":
            return self._create(edit)
        if edit.path not in self.present:
            return self._handle_missing(edit)
        if edit.action == "delete":
            return self._delete(edit)
        return self._update(edit)

    def _create(self, edit: ParsedEdit) -> FileResult:
        outcome = self._merge("", edit) if edit.changes else Merged("", "exact")
        if isinstance(outcome, Unresolved):
            return FileResult(edit.path, "create", edit.path, outcome, None)
        text = outcome.text if isinstance(outcome, Merged) else ""
        existing = self.present.get(edit.path)
        if existing == text:
            done = AlreadyApplied("The file is there, with just this text.")
            return FileResult(edit.path, "create", edit.path, done, text)
        if existing is not None and not self._may_take(edit.path):
            return _refuse(
                edit,
                "file_exists",
                f"'{edit.path}' shall be created, but is there already with another text.",
                "Update the file, or delete it first in the same patch.",
            )
        self._put(edit.path, text)
        return FileResult(edit.path, "create", edit.path, Merged(text, "exact"), text)

    def _delete(self, edit: ParsedEdit) -> FileResult:
        text = self.present[edit.path]
        if edit.path in self.changed and not self.compat:
            return _refuse(
                edit, "open_intent", f"'{edit.path}' is changed and then deleted.", "Send only what shall come of it."
            )
        if edit.changes:
            rest = self._merge(text, edit)
            if not isinstance(rest, Merged) or rest.text.strip():
                reason = f"'{edit.path}' shall be deleted, but its text is not the one that the diff deletes."
                return _refuse(edit, "stale", reason, "Read the file again; delete it if what is new in it shall go.")
        self._remove(edit.path)
        return FileResult(edit.path, "delete", edit.path, Merged("", "exact"), None)

    def _update(self, edit: ParsedEdit) -> FileResult:
        text = self.present[edit.path]
        target = edit.move_to or edit.path
        outcome = self._merge(text, edit)
        if isinstance(outcome, Unresolved):
            return FileResult(edit.path, "update", target, outcome, None)
        merged = outcome.text if isinstance(outcome, Merged) else text
        if target == edit.path:
            if merged != text:
                self._put(target, merged)
            return FileResult(edit.path, "update", target, outcome, merged)
        if target in self.present and not self._may_take(target):
            return _refuse(
                edit, "file_exists", f"'{target}' is there already; '{edit.path}' cannot be moved onto it.", _OTHER_NAME
            )
        rung = outcome.rung if isinstance(outcome, Merged) else "exact"
        self._remove(edit.path)
        self._put(target, merged)
        return FileResult(edit.path, "update", target, Merged(merged, rung), merged)

    def _handle_missing(self, edit: ParsedEdit) -> FileResult:
        """Answer an edit of a missing file: a move may be already applied; every other edit is refused."""
        moved = self.present.get(edit.move_to) if edit.move_to and not self.compat else None
        if moved is not None:
            outcome = self._merge(moved, edit) if edit.changes else AlreadyApplied("")
            if isinstance(outcome, AlreadyApplied):
                done = AlreadyApplied(f"The file stands at '{edit.move_to}' already, with every change.")
                return FileResult(edit.path, "update", edit.move_to, done, moved)
        verb = {"update": "changed", "delete": "deleted", "create": "created"}[edit.action]
        gone = " any more: an edit before it moved or deleted it" if edit.path in self.changed else ""
        return _refuse(
            edit, "file_missing", f"'{edit.path}' shall be {verb}, but there is no such file{gone}.", _OTHER_PATH
        )

    def _merge(self, text: str, edit: ParsedEdit) -> MergeOutcome:
        if self.compat and edit.format == "v4a":
            if edit.action == "update" and not edit.changes:
                return Unresolved("malformed", f"Update file hunk for path '{edit.path}' is empty.")
            return merge_hunks(text, edit, compat=edit.action == "update")
        if not edit.changes:
            return AlreadyApplied("The edit changes no line.")
        return merge(text, edit, find_language(edit.path))

    def _may_take(self, path: str) -> bool:
        return self.compat or (path in self.leaving and path not in self.changed and path not in self.arrived)

    def _put(self, path: str, text: str) -> None:
        if path in self.present and path in self.leaving and path not in self.changed and not self.compat:
            self.arrived[path] = text
            return
        self.present[path] = text
        self.changed[path] = text

    def _remove(self, path: str) -> None:
        del self.present[path]
        self.changed[path] = None
        if path in self.arrived:
            self._put(path, self.arrived.pop(path))


_OTHER_NAME = "Choose another name, or delete that file first in the same patch."
_OTHER_PATH = "Check the path; to make a new file, create it."


def _find_leaving_paths(edits: Sequence[ParsedEdit]) -> frozenset[str]:
    return frozenset(
        edit.path
        for edit in edits
        if edit.format == "udiff" and (edit.action == "delete" or edit.move_to not in ("", edit.path))
    )


def _accept_missing_deletions(results: Sequence[FileResult]) -> list[FileResult]:
    """Accept the deletion of a missing file if the set has other edits, and all of these are already applied."""
    others = [result for result in results if not _is_missing_deletion(result)]
    if not others or not all(isinstance(result.outcome, AlreadyApplied) for result in others):
        return list(results)
    done = AlreadyApplied("The file is gone, and all other edits are done already.")
    return [replace(result, outcome=done) if _is_missing_deletion(result) else result for result in results]


def _is_missing_deletion(result: FileResult) -> bool:
    outcome = result.outcome
    return result.action == "delete" and isinstance(outcome, Unresolved) and outcome.code == "file_missing"


def _refuse(edit: ParsedEdit, code: ReasonCode, reason: str, suggestion: str) -> FileResult:
    return FileResult(
        edit.path, edit.action, edit.move_to or edit.path, Unresolved(code, reason, suggestion=suggestion), None
    )


def _clean_path(path: str) -> str:
    """Return a path without "./" and doubled slashes; a path that leads out of the root stays as it is."""
    return path if not path or ".." in path.split("/") else normpath(path)


def _find_path_fault(path: str) -> str | None:
    r"""Return why a path is refused, or None; Windows' drives and backslash roots count as absolute everywhere."""
    if not path or path == ".":
        return "The edit does not name its file."
    if path.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:[\\/]", path):
        return f"'{path}' is an absolute path."
    if ".." in re.split(r"[\\/]", path):
        return f"'{path}' leads out of its folder with '..'."
    return "The path holds a NUL character." if "\0" in path else None
