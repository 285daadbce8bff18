"""Brings an edit of an earlier version of a file together with the file as it is now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from agent_runtime.apply.result import IN_CONFLICT, decode, encode_merged, make_refusal, make_version, render_file_diff
from agent_runtime.errors import EditRefused
from agent_runtime.types import ApplyRequest, FileResult, Reason
from editor.codec import SourceText
from editor.grammars import find_language
from editor.three_way import Conflict, check_three_way, merge_three_way
from editor.types import Check
from editor.verify import is_accepted

MAX_NEAREST = 12
"""Lines of the file that a refusal shows."""


def decode_base(request: ApplyRequest) -> SourceText:
    """Return the text that the edit was made for: that of the base, without one that of the file; raises BadFile."""
    if request.base is None:
        return decode(request.original, request.path)
    return decode(request.base, f"the base of {request.path}")


@contextmanager
def name_base(request: ApplyRequest) -> Iterator[None]:
    """Have the reasons of a refusal say that they are about the base, if there is one."""
    try:
        yield
    except EditRefused as fault:
        if request.base is None:
            raise
        reasons = [replace(reason, reason=f"In the base of the edit: {reason.reason}") for reason in fault.reasons]
        raise make_refusal(reasons) from fault


def merge_into_current(file: FileResult, request: ApplyRequest) -> FileResult:
    """Return the result for `request.original`, given that for `request.base`; without a base, the result unchanged.

    The edit's checks are those of its merge into the base; one more, `three_way`, is about both changes together.
    Raises EditRefused for a conflict, unless the request asks for markers, and BadFile.
    """
    if request.base is None or request.base == request.original:
        return file
    path, language = request.path, find_language(request.path)
    base, current, edited = (decode(data, path) for data in (request.base, request.original, file.data))
    merge = merge_three_way(base.text, current.text, edited.text)
    if merge.conflicts and request.on_conflict == "refuse":
        raise make_refusal([_build_conflict_reason(merge.conflicts, current.text, path)])
    before = make_version(request.original, current)
    after = encode_merged(merge.text, current, by_model=False, ops=merge.ops)
    if merge.conflicts:
        check = Check("three_way", True, f"{len(merge.conflicts)} conflicts are between markers")
    else:
        check = check_three_way(merge.text, current.text, edited.text, language)
    status, checks = file.status, (*file.checks, check)
    if status != "rejected" and after.data == before.data:
        status, checks = "noop", (Check("already_applied", True, "The file has what the edit asks for."),)
    elif status != "rejected":
        status = "merged" if is_accepted(checks, request.policy) else "rejected"
    return replace(
        file,
        status=status,
        merged=after.text or "",
        diff="" if status == "noop" else render_file_diff(before.text, after.text, path or "file"),
        checks=checks,
        sha256_before=before.sha256,
        sha256_after=after.sha256,
        encoding=current.encoding,
        base_sha256=file.sha256_before,
        conflicts=len(merge.conflicts),
    )


def _build_conflict_reason(conflicts: Sequence[Conflict], current: str, path: str) -> Reason:
    """Return the reason that names the lines in conflict, and shows the first of them."""
    first, lines = conflicts[0], current.split("\n")
    places = ", ".join(_format_range(conflict) for conflict in conflicts[:5]) + (" and more" if conflicts[5:] else "")
    shown = lines[max(0, first.start - 1) : first.end + 1][:MAX_NEAREST]
    number = max(0, first.start - 1) + 1
    return Reason(
        "conflict",
        f"The file has changed since the base of the edit, in the same lines as the edit: {places}.",
        len(conflicts),
        "\n".join(["the file has now:", *(f"  {at}: {line}" for at, line in enumerate(shown, number))]),
        IN_CONFLICT,
        path=path,
    )


def _format_range(conflict: Conflict) -> str:
    """Format lines from 1; lines that are gone from the file are named by the one before."""
    first, last = conflict.start + 1, conflict.end
    if last < first:
        return f"after line {conflict.start}"
    return f"line {first}" if first == last else f"lines {first}-{last}"
