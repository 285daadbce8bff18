"""Values of an apply: request, result, reasons, usage and trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from editor.types import Check, FormatName, Policy, ReasonCode, UnaccountedLine

Certainty = Literal["certain", "likely", "scored", "model"]
"""Who decided, surest first.

`certain`: a rule with one place, or a reading above the strict bar. `likely`: a reading above the lower bar, without a
model. `scored`: a model chose one of the readings. `model`: a model wrote the merge.
"""

CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)
"""All of them, surest first."""

WRITE_CERTAINTY: Certainty = "likely"
"""What a merge has to be at least that is written before anybody has seen it, where nothing else is asked for."""


def is_as_sure(certainty: Certainty, least: Certainty) -> bool:
    """Tell whether a certainty is `least` or a surer one."""
    return CERTAINTIES.index(certainty) <= CERTAINTIES.index(least)


def find_surest(certainties: Iterable[Certainty]) -> Certainty:
    """Return the surest of one or more."""
    return min(certainties, key=CERTAINTIES.index)


def find_least_sure(certainties: Iterable[Certainty]) -> Certainty:
    """Return the least sure of several; `certain` of none."""
    return max(certainties, key=CERTAINTIES.index, default="certain")


def describe_certainty(certainty: Certainty, rung: str, confidence: float | None) -> str:
    """Return in words, for a person or an agent, who made a merge and how sure that is.

    `confidence` is cut to whole per cents, never rounded up.
    """
    by = {"certain": f"by rule ({rung})", "likely": f"as its likeliest reading ({rung})"}.get(certainty, "by the model")
    sure = {"likely": "likely right", "scored": "chosen and checked", "model": "checked"}.get(certainty)
    share = "" if sure is None or confidence is None else f" ({format_percent(confidence)})"
    return f"{by}, {sure or certainty}{share}"


def format_percent(confidence: float) -> str:
    """Return a confidence in whole per cents, cut: nothing short of 1 is 100 %."""
    return f"{int(confidence * 100)} %"


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of an edit that no rule proves: its score in (0, 1], what was assumed, and its short diff.

    `confidence` is the probability, in [0, 1], that it is right; None where there is none.
    """

    score: float
    why: str
    diff: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the edit of one file is refused, short enough to be handed to a model.

    `num_candidates` counts the places or readings that came into question, `candidates` holds the likeliest of them.
    `nearest` is the closest miss as text with line numbers, `suggestion` what to send instead.
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

`auto`: rules, and the model on a lazy snippet that no rule decides. `deterministic`: rules only. `model`: the model, on
all edits; in no other mode does it decide where an edit of another format than `lazy` belongs.
"""

Draft = Literal["copy", "none"]
"""`copy` drafts the answer from the file and the edit; `none` decodes a token a pass, for comparison."""

ScopeName = Literal["auto", "file"]
"""How much of a file the model is given: the regions that the edit can touch, or all of it."""

Decide = Literal["auto", "generate", "score"]
"""What the model does with the rules' readings of an edit that no rule decides.

`score` takes the one that it would write, and writes the merge where it is in doubt; `generate` writes in any case;
`auto` is `score`, but `generate` where the mode asks for the model only.
"""

DECIDE: Decide = "auto"
"""What happens where a request does not say."""

ReuseName = Literal["exact", "balanced", "fast", "turbo"]
"""How much of what was computed for earlier edits a prompt may take (docs/reuse.md).

`exact`: its longest known beginning, so that the answer is that of a model that has seen nothing before. `fast` and
`turbo`: unchanged parts of the file behind a change, too, which is approximate. `balanced` is for sessions.
"""

Reader = Callable[[str], bytes | None]
"""Gives the bytes of a file that an edit names, None where there is none; raises BadFile where it may not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an edit is read and merged, whatever it is an edit of."""

    format: FormatName | Literal["auto"] = "auto"
    instruction: str = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    draft: Draft = "copy"
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    reuse: ReuseName | None = None
    """None: what the service was started with; in this process `exact`."""
    trace: bool = False
    """Whether the answer tells token by token what the model read and wrote."""
    salt: str = ""
    """What is computed for one salt is taken for no other: one a tenant. Whoever serves an edit chooses it, nobody
    who sends one does."""
    min_certainty: Certainty | None = None
    """What is less sure is refused. None: `model`, so nothing is, but see `min_certainty_of` where a service writes."""
    root: str = ""
    """The folder, resolved, in which `path` names the file; "" where none is known. Chosen like the salt."""

    @property
    def least_certainty(self) -> Certainty:
        """What an answer has to be at least."""
        return self.min_certainty or "model"

    def options(self) -> dict[str, Any]:
        """All options by name."""
        return {option.name: getattr(self, option.name) for option in fields(Options)}

    def to_request_options(self) -> dict[str, Any]:
        """Those that a service takes from a request."""
        return {name: value for name, value in self.options().items() if name in SENT_OPTIONS}


def resolve_min_certainty(asked: Certainty | None, mode: Mode, *, write: bool) -> Certainty | None:
    """Return the `min_certainty` of a request to a service: what was asked for, else `UNSEEN` for what it writes.

    The mode `model` asks for a model by its name, so that nothing is refused for it.
    """
    return WRITE_CERTAINTY if asked is None and write and mode != "model" else asked


SENT_OPTIONS = tuple(option.name for option in fields(Options) if option.name not in ("salt", "root"))


@dataclass(frozen=True, slots=True)
class ApplyRequest(Options):
    """One edit of one file. `original` is the file's bytes; `path` is its name, which tells the language.

    `prediction` is what the sender expects the whole file to be after the edit: the model confirms it where it is
    right, and it changes no answer where it is wrong. Rules do without it.
    """

    original: bytes
    edit: str
    path: str = ""
    prediction: str | None = None


@dataclass(frozen=True, slots=True)
class PatchRequest(Options):
    """One edit that names its files itself, as V4A patches, diffs and SEARCH blocks below file names do."""

    edit: str


PromptKind = Literal["cached", "reused", "recomputed"]
"""Whether a prompt's tokens took exact KV, took KV of other prompts approximately, or were run."""

Origin = Literal["copied", "generated", "scored"]
"""How output tokens came about: the draft had them and the model confirmed them, the model wrote them itself, or they
belong to a reading that it was given to say how likely it is."""


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Neighbouring tokens of a prompt with the same fate. A character that two runs share stands in the second."""

    text: str
    kind: PromptKind
    tokens: int


@dataclass(frozen=True, slots=True)
class OutputRun:
    """Neighbouring tokens of an answer that one pass (from 0) confirmed and that came about in the same way.

    Tokens that end the answer, such as its closing tag, count and have no text.
    """

    text: str
    origin: Origin
    pass_number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ForwardTrace:
    """One pass: the tokens of the answer that it confirmed, and the draft tokens that were put before the model."""

    tokens: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """One question to the model and its answer, token by token: their counts add up to those of `Usage`.

    region: which of the file's regions it is about, from 0. purpose: the model writes the region, or scores a reading
    of it, of which `output` then is the part that tells it from the others.
    """

    path: str
    region: int
    purpose: Literal["write", "score"]
    prompt: tuple[PromptRun, ...]
    output: tuple[OutputRun, ...]
    forwards: tuple[ForwardTrace, ...]


@dataclass(frozen=True, slots=True)
class SourceUsage:
    """Draft tokens of one source, such as `merge`: `drafted` = `accepted` + `rejected`."""

    drafted: int = 0
    accepted: int = 0
    rejected: int = 0

    def plus(self, other: SourceUsage) -> SourceUsage:
        """The sum of both."""
        return SourceUsage(self.drafted + other.drafted, self.accepted + other.accepted, self.rejected + other.rejected)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens by reason. `prompt` splits into `cached` + `reused_approximate` + `recomputed`; `forwards` counts passes.

    `recomputed_by` splits `recomputed` by why those tokens were run (`engine.reuse.RecomputeReason`), as far as known.
    `drafted` = `accepted` + `rejected` counts draft tokens that were put before the model; `by_source` splits them by
    where they were copied from. `prefill_forwards` are those of the `forwards` that ran the prompt's tokens.
    `near_ties` counts greedy choices that rounding may turn (`engine.types.GenerationUsage`).
    `prefix_hit_rate` is `cached / prompt` in [0, 1].
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


def total_usage(parts: Iterable[Usage]) -> Usage:
    """The sum of what several applies used."""
    parts = list(parts)
    derived = ("prefix_hit_rate", "by_source", "recomputed_by")
    names = [count.name for count in fields(Usage) if count.name not in derived]
    counts = {name: sum(getattr(part, name) for part in parts) for name in names}
    recomputed_by = Counter[str]()
    for part in parts:
        recomputed_by.update(part.recomputed_by)
    by_source: dict[str, SourceUsage] = {}
    for source, usage in (each for part in parts for each in part.by_source.items()):
        by_source[source] = by_source.get(source, SourceUsage()).plus(usage)
    rate = counts["cached"] / counts["prompt"] if counts["prompt"] else 0.0
    return Usage(**counts, prefix_hit_rate=rate, by_source=by_source, recomputed_by=dict(recomputed_by))


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
    def summary(self) -> str:
        """Who made the merge and how sure that is, in words."""
        return describe_certainty(self.certainty, self.rung, self.confidence)

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
