"""What is answered to one apply: what became of each file, what it took and how it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_runtime.types.certainty import Certainty, describe
from agent_runtime.types.trace import AnswerTrace
from agent_runtime.types.usage import Usage
from editor.types import Check, UnaccountedLine

Method = Literal["deterministic", "model"]
Status = Literal["merged", "rejected", "noop"]
Action = Literal["update", "create", "delete", "move"]
"""What becomes of a file; a `move` may change its text too."""


@dataclass(frozen=True, slots=True)
class GivenScope:
    """How much of a file a model was given: the whole of it, or regions, beside an outline of the rest.

    `regions` are their first and last lines, counted from 1; `lines` is how many they hold, `of_lines` how many the
    file has.
    """

    kind: Literal["regions", "file"]
    regions: tuple[tuple[int, int], ...]
    lines: int
    of_lines: int


@dataclass(frozen=True, slots=True)
class ScoredReading:
    """What a model holds of one reading of an edit; `why` says what was assumed.

    `score` in [0, 1] weighs it against the others that were scored, they sum to 1. `logprob` is the mean
    log-probability of the tokens that tell it from the others and from the file, `least_logprob` that of the least
    likely one.
    """

    why: str
    score: float
    logprob: float
    least_logprob: float


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one file.

    `merged` is its whole text after the edit, a leading BOM included, "" where it was deleted; in `encoding` (a codec
    of Python) it gives the file's bytes. A hash is "" where there is no file: before `create`, after `delete`.
    `scope` is None where no model was asked. `readings` are those that a model scored, best first. `repaired` are lines
    of a model's text that the edit does not account for, and in whose place the file's own stand. `confidence` in
    [0, 1] is the probability that the reading is right (`certain`, `likely`), or the share of all weight that the
    model's choice had (`scored`); None where a rule decided without a reading, and where the model wrote.
    """

    path: str
    status: Status
    merged: str
    diff: str
    method: Method
    rung: str
    candidates: int
    certainty: Certainty
    checks: tuple[Check, ...]
    sha256_before: str
    sha256_after: str
    encoding: str = "utf-8"
    action: Action = "update"
    move_to: str = ""
    scope: GivenScope | None = None
    readings: tuple[ScoredReading, ...] = ()
    repaired: tuple[UnaccountedLine, ...] = ()
    confidence: float | None = None

    @property
    def how(self) -> str:
        """Who made the merge and how sure that is, in words."""
        return describe(self.certainty, self.rung, self.confidence)

    @property
    def data(self) -> bytes:
        """The file's bytes after the edit."""
        return self.merged.encode(self.encoding)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The answer to one apply. A result that a check rejects still carries everything.

    `timings` holds milliseconds by phase (`parse_ms`, `merge_ms`, `scope_ms`, `prompt_ms`, `score_ms`, `prefill_ms`,
    `decode_ms`, `verify_ms`) and `total_ms`; a phase that did not happen is absent. `trace` has an entry for each
    question to the model, in their order; None where the request did not ask for it. `written` says that the merged
    files have been put in their places.
    """

    files: tuple[FileResult, ...]
    usage: Usage
    timings: dict[str, float] = field(default_factory=dict)
    trace: tuple[AnswerTrace, ...] | None = None
    written: bool = False

    @property
    def status(self) -> Status:
        """`merged` only if no file is rejected, and one at least has changed."""
        statuses = {file.status for file in self.files}
        return next((status for status in _WORST_FIRST if status in statuses), "noop")

    @property
    def file(self) -> FileResult:
        """The only file."""
        (file,) = self.files
        return file


_WORST_FIRST: tuple[Status, ...] = ("rejected", "merged", "noop")
