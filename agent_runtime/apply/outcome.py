"""A file's bytes as text, and what became of it, whoever merged it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from agent_runtime.apply.file_diff import file_diff
from agent_runtime.errors import BadFile
from agent_runtime.types import Action, Certainty, FileResult, GivenScope, Method, ScoredReading, Status, Usage
from editor import codec
from editor.alignment import LineOp
from editor.errors import CodecError
from editor.types import Check, Policy, UnaccountedLine
from editor.verify import passed


@dataclass(frozen=True, slots=True)
class Outcome:
    r"""A merge, whoever made it, before it is verified. `text` has "\n" lines; `ops` as in `editor.types.Merged`."""

    text: str
    method: Method
    rung: str
    num_candidates: int
    certainty: Certainty
    usage: Usage = field(default_factory=Usage)
    truncated: bool = False
    scope: GivenScope | None = None
    checks: tuple[Check, ...] = ()
    readings: tuple[ScoredReading, ...] = ()
    repaired: tuple[UnaccountedLine, ...] = ()
    ops: tuple[LineOp, ...] = ()
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a file: its bytes and its whole text with BOM and line endings; `NO_FILE` where there is none."""

    data: bytes | None
    text: str | None

    @property
    def sha256(self) -> str:
        """The hash of the bytes, "" where there is no file."""
        return "" if self.data is None else sha256(self.data).hexdigest()


NO_FILE = Version(None, None)


def decode(data: bytes, path: str) -> codec.SourceText:
    """A file's bytes as text; raises BadFile."""
    try:
        return codec.decode(data)
    except CodecError as error:
        raise BadFile(f"{path}: {error}" if path else str(error)) from error


def original_version(data: bytes, source: codec.SourceText) -> Version:
    """The file as it was read."""
    return Version(data, data.decode(source.encoding))


def merged_version(
    outcome_text: str, source: codec.SourceText, *, by_model: bool, ops: Sequence[LineOp] = ()
) -> Version:
    r"""A merged text with "\n" lines in the file's encoding, BOM and endings; raises BadFile where it does not fit."""
    try:
        data = codec.encode(outcome_text, source, by_model=by_model, ops=ops)
    except CodecError as error:
        raise BadFile(str(error)) from error
    return original_version(data, source)


def other_endings(source: codec.SourceText, after: Version, ops: Sequence[LineOp] = ()) -> tuple[int, ...]:
    """The lines (from 0) that stay and would have another ending; line 0 where the byte order mark changes."""
    if after.data is None:
        return ()
    changes = codec.byte_changes(source, after.data, ops)
    return (*changes.endings, *((0,) if changes.bom else ()))


def status_of(checks: Sequence[Check], policy: Policy) -> Status:
    """`merged`, unless a check that counts under the policy failed."""
    return "merged" if passed(checks, policy) else "rejected"


def file_result(
    path: str,
    status: Status,
    before: Version,
    after: Version,
    outcome: Outcome,
    checks: tuple[Check, ...],
    *,
    encoding: str,
    action: Action = "update",
    move_to: str = "",
) -> FileResult:
    """The entry of one file in the answer."""
    return FileResult(
        path=path,
        status=status,
        merged=after.text or "",
        diff=file_diff(before.text, after.text, path or "file", move_to) if status != "noop" else "",
        method=outcome.method,
        rung=outcome.rung,
        candidates=outcome.num_candidates,
        certainty=outcome.certainty,
        checks=checks,
        sha256_before=before.sha256,
        sha256_after=after.sha256,
        encoding=encoding,
        action=action,
        move_to=move_to,
        scope=outcome.scope,
        readings=tuple(sorted(outcome.readings, key=lambda reading: -reading.score)),
        repaired=outcome.repaired,
        confidence=outcome.confidence,
    )
