"""Values of an apply: request, result, reasons, usage and trace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from agent_runtime.certainty import WRITE_CERTAINTY, Certainty, describe_certainty, is_as_sure
from editor.types import Check, FormatName, Policy, ReasonCode, UnaccountedLine


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of an edit that no rule proves: its score in (0, 1], its assumption, and its short diff.

    `confidence` is the probability in [0, 1] that the reading is right; None if it is unknown.
    """

    score: float
    why: str
    diff: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the edit of one file is refused, short enough for a model.

    num_candidates: number of possible places or readings; `candidates` holds the likeliest. nearest: the most similar
    lines of the file, with line numbers. suggestion: what to send instead.
    """

    code: ReasonCode
    reason: str
    num_candidates: int = 0
    nearest: str = ""
    suggestion: str = ""
    candidates: tuple[Reading, ...] = ()
    path: str = ""


Mode = Literal["auto", "deterministic", "model"]
"""Who decides.

`auto`: rules, and the model for a lazy snippet that no rule decides. `deterministic`: only rules. `model`: the model,
for all edits; only in this mode does it decide the place of an edit in another format than `lazy`."""

Draft = Literal["copy", "none"]
"""`copy` drafts the answer from the file and the edit; `none` decodes one token a pass, for comparison."""

ScopeName = Literal["auto", "file"]
"""What the model is given: the regions that the edit can touch, or the whole file."""

Decide = Literal["auto", "generate", "score"]
"""What the model does with the rules' readings of an edit that no rule decides.

`score`: it chooses the likeliest, and writes the merge if in doubt. `generate`: it always writes. `auto`: in the mode
`auto` it chooses the likeliest, and none if in doubt, unless `min_certainty` is `model`; in the mode `model` it writes.
"""

DECIDE: Decide = "auto"
"""Default of `decide`."""

ReuseName = Literal["exact", "balanced", "fast", "turbo"]
"""What a prompt may reuse of the KV of earlier edits (docs/reuse.md).

`exact`: only its longest cached prefix, which changes no answer. `fast` and `turbo`: also unchanged parts of the file
after a change, which is approximate. `balanced`: only for sessions."""

Reader = Callable[[str], bytes | None]
"""Returns the bytes of a file, None if there is no such file; raises BadFile if it may not be read."""


EditInput = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""An edit in any format as text; one in JSON also as its objects, such as `{"old_string": "a", "new_string": "b"}`."""


def encode_edit(edit: object) -> str:
    """Return an edit as text; JSON objects are encoded. Raises TypeError for anything else."""
    if isinstance(edit, str):
        return edit
    objects = edit if isinstance(edit, list | tuple) else [edit]
    if all(isinstance(each, Mapping) for each in objects):
        return json.dumps(edit, ensure_ascii=False)
    raise TypeError(f"an edit is a text, a JSON object or a list of them, not {type(edit).__name__}")


WRITE_SECONDS = 30.0
"""Default of `max_write_seconds`: seconds from the first token that a model writes for a file to its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an edit is parsed and merged, in any kind of request."""

    format: FormatName | Literal["auto"] = "auto"
    instruction: str = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    max_write_seconds: float = WRITE_SECONDS
    draft: Draft = "copy"
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    reuse: ReuseName | None = None
    """None: the service's default; in this process `exact`."""
    trace: bool = False
    """Whether the result contains the tokens that the model read and wrote."""
    salt: str = ""
    """KV computed with one salt is never reused with another: one salt per tenant. Set by the service, never by the
    sender."""
    min_certainty: Certainty | None = None
    """Less sure merges are refused. None: `model`, which refuses none, but see `resolve_min_certainty` for writing."""
    root: str = ""
    """The resolved folder that contains `path`; "" if unknown. Set by the service."""

    @property
    def least_certainty(self) -> Certainty:
        """The minimum certainty of the result."""
        return self.min_certainty or "model"

    @property
    def writes_in_doubt(self) -> bool:
        """Whether a model that is sure of no reading writes the merge: it does so only where that is asked for."""
        return is_as_sure("model", self.least_certainty) and (self.decide == "score" or self.min_certainty == "model")

    def options(self) -> dict[str, Any]:
        """Return all options by name."""
        return {option.name: getattr(self, option.name) for option in fields(Options)}

    def to_request_options(self) -> dict[str, Any]:
        """Return the options that a service accepts from a request."""
        return {name: value for name, value in self.options().items() if name in SENT_OPTIONS}


def resolve_min_certainty(asked: Certainty | None, mode: Mode, *, write: bool) -> Certainty | None:
    """Return the `min_certainty` of a request to a service: the requested one, else `WRITE_CERTAINTY` for a write.

    The mode `model` asks explicitly for a model's merge, so there nothing is refused by default.
    """
    return WRITE_CERTAINTY if asked is None and write and mode != "model" else asked


OnConflict = Literal["refuse", "markers"]
"""What to do where an edit of a base and the file's changes since then conflict: refuse the edit, or put all versions
between conflict markers."""


SENT_OPTIONS = tuple(option.name for option in fields(Options) if option.name not in ("salt", "root"))


@dataclass(frozen=True, slots=True)
class ApplyRequest(Options):
    """One edit of one file. `original` is the file's bytes; `path` is its name, which gives the language.

    `prediction` is the file that the sender expects. The model confirms it where it is right; it never changes the
    answer. Rules ignore it. base: the bytes that the edit was made for, if the file may have changed since: the edit is
    merged into these, and the changes of both are brought together (`editor.three_way`).
    """

    original: bytes
    edit: EditInput
    path: str = ""
    prediction: str | None = None
    base: bytes | None = None
    on_conflict: OnConflict = "refuse"

    def __post_init__(self) -> None:
        if not isinstance(self.original, bytes):
            raise TypeError(f"`original` is the file's bytes, not {type(self.original).__name__}")
        if not isinstance(self.base, bytes | None):
            raise TypeError(f"`base` is a file's bytes, not {type(self.base).__name__}")
        object.__setattr__(self, "edit", encode_edit(self.edit))

    @property
    def edit_text(self) -> str:
        """The edit as text."""
        return encode_edit(self.edit)


@dataclass(frozen=True, slots=True)
class PatchRequest(Options):
    """One edit that names its files itself: a V4A patch, a diff, or SEARCH blocks with file names."""

    edit: EditInput

    def __post_init__(self) -> None:
        object.__setattr__(self, "edit", encode_edit(self.edit))

    @property
    def edit_text(self) -> str:
        """The edit as text."""
        return encode_edit(self.edit)


PromptKind = Literal["cached", "reused", "recomputed"]
"""Whether a prompt's tokens reused exact KV, reused KV of other prompts approximately, or were computed."""

Origin = Literal["copied", "generated", "scored"]
"""Whether output tokens were copied from the draft, generated by the model, or given to it for scoring."""


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Consecutive tokens of a prompt of the same kind. A character that two runs share is in the second one."""

    text: str
    kind: PromptKind
    tokens: int


@dataclass(frozen=True, slots=True)
class OutputRun:
    """Consecutive tokens of an answer that one pass (from 0) confirmed, with the same origin.

    Tokens that end the answer, such as its closing tag, are counted and have no text.
    """

    text: str
    origin: Origin
    pass_number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ForwardTrace:
    """One pass: its confirmed tokens, and its draft tokens."""

    tokens: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """One question to the model and its answer, token by token. The counts add up to those of `Usage`.

    region: the number of the file's region, from 0. purpose: `write` for a region's text; `score` for a reading, of
    which `output` is the part that differs from the others.
    """

    path: str
    region: int
    purpose: Literal["write", "score"]
    prompt: tuple[PromptRun, ...]
    output: tuple[OutputRun, ...]
    forwards: tuple[ForwardTrace, ...]


@dataclass(frozen=True, slots=True)
class SourceUsage:
    """Draft tokens from one source, such as `merge`: `drafted` = `accepted` + `rejected`. `forwards` counts the passes
    that verified any.
    """

    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    forwards: int = 0

    def add(self, other: SourceUsage) -> SourceUsage:
        """Return the sum of both."""
        return SourceUsage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(SourceUsage)))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `prompt` = `cached` + `reused_approximate` + `recomputed`; `forwards` counts forward passes.

    recomputed_by: `recomputed` by reason (`engine.reuse.RecomputeReason`), as far as known. drafted: `accepted` +
    `rejected`, the verified draft tokens; `by_source` counts them by source. prefill_forwards: passes that computed
    prompt tokens. near_ties: greedy choices that rounding may change (`engine.types.GenerationUsage`). prefix_hit_rate:
    `cached / prompt`, in [0, 1].
    """

    prompt: int = 0
    cached: int = 0
    reused_approximate: int = 0
    recomputed: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    forwards: int = 0
    prefill_forwards: int = 0
    near_ties: int = 0
    prefix_hit_rate: float = 0.0
    by_source: Mapping[str, SourceUsage] = field(default_factory=dict)
    recomputed_by: Mapping[str, int] = field(default_factory=dict)


def sum_usage(parts: Iterable[Usage]) -> Usage:
    """Return the sum of several usages."""
    parts = list(parts)
    derived = ("prefix_hit_rate", "by_source", "recomputed_by")
    names = [count.name for count in fields(Usage) if count.name not in derived]
    counts = {name: sum(getattr(part, name) for part in parts) for name in names}
    recomputed_by = Counter[str]()
    for part in parts:
        recomputed_by.update(part.recomputed_by)
    by_source: dict[str, SourceUsage] = {}
    for source, usage in (each for part in parts for each in part.by_source.items()):
        by_source[source] = by_source.get(source, SourceUsage()).add(usage)
    rate = counts["cached"] / counts["prompt"] if counts["prompt"] else 0.0
    return Usage(**counts, prefix_hit_rate=rate, by_source=by_source, recomputed_by=dict(recomputed_by))


Method = Literal["deterministic", "model"]
Status = Literal["merged", "rejected", "noop"]
Action = Literal["update", "create", "delete", "move"]
"""What happens to a file; a `move` may also change its text."""


@dataclass(frozen=True, slots=True)
class GivenScope:
    """The part of a file that a model was given: the whole file, or regions with an outline of the rest.

    `regions` are their first and last lines, from 1; `lines` is the number of lines in them, `of_lines` that in the
    file.
    """

    kind: Literal["regions", "file"]
    regions: tuple[tuple[int, int], ...]
    lines: int
    of_lines: int


@dataclass(frozen=True, slots=True)
class ScoredReading:
    """A model's scores of one reading of an edit; `why` is its assumption.

    score: share in [0, 1] of the weights of all scored readings, which sum to 1. logprob: mean log-probability of the
    tokens in which the reading differs from the others and from the file. least_logprob: that of the least likely
    token.
    """

    why: str
    score: float
    logprob: float
    least_logprob: float


@dataclass(frozen=True, slots=True)
class FileResult:
    """The result of one file.

    merged: the whole text after the edit, with a leading BOM, "" if the file was deleted; encoded in `encoding` (a
    Python codec) it is the file's bytes. The hashes are "" if there is no file: before `create`, after `delete`. scope:
    None if no model was asked. readings: those that a model scored, best first. repaired: lines of a model's text that
    the edit does not account for, and that were replaced by the file's own. confidence: in [0, 1]; the probability that
    the reading is right (`certain`, `likely`), or the score of the model's choice (`scored`); None if a rule decided
    without a reading, or the model wrote. base_sha256: the hash of the base, if the file has changed since, else "".
    conflicts: the number of conflicts between markers in `merged`.
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
    base_sha256: str = ""
    conflicts: int = 0

    @property
    def summary(self) -> str:
        """Who made the merge, and how sure it is, in words."""
        made = describe_certainty(self.certainty, self.rung, self.confidence)
        if not self.base_sha256:
            return made
        left = f", with {self.conflicts} conflicts between markers" if self.conflicts else ""
        return f"{made}; the file has changed since: merged three-way{left}"

    @property
    def data(self) -> bytes:
        """The file's bytes after the edit."""
        return self.merged.encode(self.encoding)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of one apply. A result that a check rejects is complete, too.

    timings: milliseconds by phase (`parse_ms`, `merge_ms`, `scope_ms`, `prompt_ms`, `score_ms`, `prefill_ms`,
    `decode_ms`, `verify_ms`) and `total_ms`; a phase that did not happen is absent. trace: one entry for each question
    to the model, in order; None unless the request asked for it. written: whether files were; `write_id` undoes it.
    """

    files: tuple[FileResult, ...]
    usage: Usage
    timings: dict[str, float] = field(default_factory=dict)
    trace: tuple[AnswerTrace, ...] | None = None
    written: bool = False
    write_id: str = ""

    @property
    def status(self) -> Status:
        """`rejected` if any file is; else `merged` if any file is; else `noop`."""
        statuses = {file.status for file in self.files}
        return next((status for status in _WORST_FIRST if status in statuses), "noop")

    @property
    def file(self) -> FileResult:
        """The only file."""
        (file,) = self.files
        return file

    @property
    def merged(self) -> str:
        """The only file's text after the edit."""
        return self.file.merged


_WORST_FIRST: tuple[Status, ...] = ("rejected", "merged", "noop")
