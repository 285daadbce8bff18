"""Values that the engine takes and gives: requests, results, drafts, usage and reuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, RequestError

ReuseMode = Literal["exact", "fast", "turbo"]
"""How much KV a prompt takes from earlier ones.

`exact`: that of its longest cached prefix, so that the answer is that of a cold run. `fast`: that of unchanged tokens
behind a change, too, but for the rest of the changed segment and a budget of others. `turbo`: that of all unchanged
tokens.
"""

RecomputeReason = Literal["changed", "segment", "budget", "asked", "tail"]
"""Why a prompt's token is run: nothing stored fits it; it stands behind a change in the changed segment; it was chosen
by the budget; the request asks for it; it is among the last, whose logits or whose view of the whole is wanted."""


@dataclass(frozen=True, slots=True)
class PromptSegment:
    """A run of a prompt's tokens that a change affects as a whole: a definition in a file, a message of a history."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a request allows. Raises RequestError where the numbers make no sense.

    segment_ends: where the prompt's segments end, in tokens, ascending; what lies behind the last is one more. budget:
    the share, in [0, 1], of the tokens behind the first change that is run again although it is stored (None: the
    mode's own; 1: all of them, which is a full prefill). recompute: half-open ranges of the prompt that are run
    whatever is stored. edit_class: what kind of edit the prompt follows, as the caller names it; audits keep apart what
    they find of each.
    """

    mode: ReuseMode = "exact"
    segment_ends: Sequence[int] = ()
    budget: float | None = None
    recompute: Sequence[tuple[int, int]] = ()
    edit_class: str = ""

    def __post_init__(self) -> None:
        if self.mode not in ("exact", "fast", "turbo"):
            raise RequestError(f"reuse mode {self.mode!r} is not one of exact, fast, turbo")
        if self.budget is not None and not 0.0 <= self.budget <= 1.0:
            raise RequestError(f"the reuse budget is {self.budget}; it must lie in [0, 1]")
        if any(second < first for first, second in pairwise(self.segment_ends)):
            raise RequestError("segment_ends must ascend")
        if any(first < 0 or end < first for first, end in self.recompute):
            raise RequestError("a range to recompute begins before the prompt or ends before it begins")

    @classmethod
    def of(cls, segments: Sequence[PromptSegment], mode: ReuseMode, budget: float | None = None) -> Reuse:
        """For a prompt of these segments."""
        return cls(mode, tuple(accumulate(len(each.token_ids) for each in segments)), budget)


EXACT = Reuse()
"""What a request allows that says nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """The prompt's tokens [start, start + len(slots)) are stored, in these slots of the span store, in this order.

    source: where the first of them stood in the prompt that it was stored of. record: which prompt that was; matches
    of one record that keep their distance saw one another. generation: 0 where the stored KV is what a full prefill
    computed; n where it looked back on KV that was taken over and had missed n changes.
    """

    start: int
    slots: NDArray[np.int64]
    source: int
    record: int
    generation: int = 0

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + len(self.slots)

    def cut(self, start: int, end: int) -> Match:
        """The part of it at the positions [start, end), which must lie within."""
        assert self.start <= start <= end <= self.end, "the part is not of this match"
        first = start - self.start
        return Match(start, self.slots[first : end - self.start], self.source + first, self.record, self.generation)


FinishReason = Literal["stop", "length"]
"""`stop`: a stop id or stop string came; `length`: the token limit was reached, the text may be cut."""


LARGEST_BIAS = 1e4
LIMITS = {
    "temperature": (0.0, 10.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 1 << 30),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
    "logprobs": (0, 100),
    "priority": (-(10**12), 10**12),
    "deadline_s": (0.0, 1e9),
    "retain_s": (0.0, 1e9),
}
"""What the numbers of a request may be; a count may be left out where its field says so."""


@dataclass(frozen=True, slots=True)
class DraftRun:
    """Neighbouring draft tokens from one source, which statistics name.

    hazard: how likely the model is to depart at one of them, in (0, 1), as far as the drafter can tell before the
    model has been seen; what is accepted and rejected of the source corrects it.
    """

    source: str
    num_tokens: int
    hazard: float


@dataclass(frozen=True, slots=True)
class DraftBranch:
    """Another way on: behind the first `at` tokens of a draft come `token_ids`, not what the draft has there.

    chance: how likely the model is to write the first of them, once it has come to that place. hazard: how likely it
    then is to depart at each one behind that. Both are in [0, 1], as far as the drafter can tell; `source` is what
    statistics call these tokens. It is best given to the output's end: as much of it is run as pays, and what ends the
    output pays most. One that begins as the draft goes on is of no use, and does no harm.
    """

    at: int
    token_ids: Sequence[int]
    chance: float
    source: str = "branch"
    hazard: float = 0.01

    def __post_init__(self) -> None:
        if self.at < 0 or not self.token_ids or not (0.0 <= self.chance <= 1.0 and 0.0 <= self.hazard <= 1.0):
            raise ValueError(
                f"a branch of {len(self.token_ids)} tokens at {self.at}, chance {self.chance}, hazard {self.hazard}"
            )


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the next tokens. `runs`, in order, tell where they come from; they cover all of `token_ids`.

    Where two candidates part, `branch` may hold the other one: a tree of one fork, both sides of which a pass can run.
    """

    token_ids: Sequence[int]
    runs: tuple[DraftRun, ...]
    branch: DraftBranch | None = None

    @classmethod
    def of(cls, token_ids: Sequence[int], source: str = "draft", hazard: float = 0.01) -> Draft:
        """A guess from one source, with the same hazard everywhere."""
        return cls(token_ids, (DraftRun(source, len(token_ids), hazard),) if token_ids else ())

    def first(self, num_tokens: int) -> Draft:
        """The guess at the first `num_tokens` of them, and of those along the branch."""
        branch = self.branch
        if branch is not None and branch.at + len(branch.token_ids) > num_tokens:
            own_ids = branch.token_ids[: max(0, num_tokens - branch.at)]
            branch = replace(branch, token_ids=own_ids) if own_ids else None
        if num_tokens >= len(self.token_ids):
            return self if branch is self.branch else replace(self, branch=branch)
        runs, left = [], num_tokens
        for run in self.runs:
            if left > 0:
                runs.append(DraftRun(run.source, min(run.num_tokens, left), run.hazard))
                left -= run.num_tokens
        return Draft(self.token_ids[:num_tokens], tuple(runs), branch)


class Proposer(Protocol):
    """Guesses what the model will write next; a wrong guess costs time, and changes the output in near ties at most."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """Up to `max_tokens` ids that may follow `output_ids`, all that the model has written so far."""
        ...


@runtime_checkable
class RowObserver(Protocol):
    """A proposer that also learns from what the model would have written behind its departure from a draft."""

    def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
        """How many rows behind a departure are to be looked at, once it is known where it is.

        The pass has run them anyway, but for the LM head: on a 0.5B model a row of it costs a third of what its layers
        did. Rows that lie in a block with rows that were needed are shown in any case.
        """
        ...

    def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        """What a pass over a draft showed, before the tokens chosen in it join the output.

        The draft stood behind the first `num_output` output tokens; `likeliest_ids[i]` is the likeliest token behind
        `draft_ids[:i]`, for all rows that were looked at. Rows behind a departure follow what was not written: they
        are hints. Under sampling, where the output departs from the likeliest token by chance, so are all.
        """
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to be continued.

    prompt: token ids (text only for `ContinuousBatchingEngine`, which has a tokenizer). max_new_tokens: the most ids
    to write. temperature: 0 is greedy. top_k: only the k likeliest tokens (0: all). top_p: the smallest set of tokens
    whose probabilities reach it. min_p: only tokens at least min_p times as likely as the likeliest.
    repetition_penalty: logits of tokens of prompt and output are divided by it where positive, multiplied where not.
    logit_bias: added to the logits of these ids. seed: makes sampling repeatable, whatever else runs. stop_ids: ids
    that end the output and are not part of it. stop: byte strings that end the output and are not part of it.
    logprobs: for each output token its log-probability and those of so many likeliest ones (0: its own only).
    forced_ids: the output begins with these ids, whatever the model would choose. They run many a pass, as accepted
    draft tokens do; with `logprobs` each gets its log-probability, without they cost no logits. So a given text is
    scored (teacher forcing), or an answer begun.

    priority: lower goes first. deadline_s: seconds from submission after which it fails. retain_s: seconds for which
    its KV is kept before that of others, when memory is short. salt: KV is shared between equal salts only (one a
    tenant). adapter: the name of a LoRA adapter that the engine has loaded. reuse: how much KV of earlier prompts it
    may take beside its cached prefix, by which its output can differ from that of a cold run.
    """

    prompt: Sequence[int] | str
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop: tuple[bytes, ...] = ()
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    forced_ids: Sequence[int] = ()
    priority: int = 0
    deadline_s: float | None = None
    retain_s: float = 0.0
    salt: str = ""
    adapter: str | None = None
    reuse: Reuse = EXACT

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("the prompt is empty; give at least one token")
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if len(self.forced_ids) > self.max_new_tokens:
            raise RequestError(f"{len(self.forced_ids)} forced ids are more than max_new_tokens, {self.max_new_tokens}")
        if b"" in self.stop:
            raise RequestError("a stop string is empty")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:  # a NaN fails too
                raise RequestError(f"{name} is {value}; it must lie in [{least}, {most}]")
        if self.top_p == 0.0 or self.repetition_penalty == 0.0 or self.deadline_s == 0.0:
            raise RequestError("top_p, repetition_penalty and deadline_s must be above 0")
        if not all(abs(bias) <= LARGEST_BIAS for bias in self.logit_bias.values()):
            raise RequestError(f"a logit bias is outside [-{LARGEST_BIAS}, {LARGEST_BIAS}]")

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt, which must be token ids by now."""
        if isinstance(self.prompt, str):
            raise RequestError("the prompt is text; the engine takes token ids (ContinuousBatchingEngine takes text)")
        return self.prompt


@dataclass(slots=True)
class SourceUsage:
    """Draft tokens of one source that were put before the model, and those of them that it wrote, too."""

    drafted: int = 0
    accepted: int = 0

    @property
    def rejected(self) -> int:
        """Those that it did not write, or that stood behind such a one."""
        return self.drafted - self.accepted

    def add(self, other: SourceUsage) -> None:
        """Count what another one counts, too."""
        self.drafted += other.drafted
        self.accepted += other.accepted


@dataclass(slots=True)
class GenerationUsage:
    """Tokens of one request by reason, counted as it runs; `accepted <= drafted`, the rest was rejected.

    `cached` counts the prompt's tokens that were not run because their exact KV was there, `reused_approximate` those
    that took KV of an earlier prompt with another beginning, `recomputed` those that were run, split by why in
    `recomputed_by`; the three add up to `prompt`. `preempted`: how often the sequence lost its pages to another and was
    run again. `prefill_forwards` are those of the `forwards` that ran tokens of the prompt, the one with its last ones
    among them, which gives output, too. `by_source` splits `drafted` and `accepted` by the names that the drafter gave
    its runs. `near_ties` are greedy choices that were so
    near a tie that the last bits, which depend on what runs beside a row, may have decided them. `reused_at` are the
    half-open ranges of the prompt whose tokens `reused_approximate` counts, ascending; the cached ones are its first.
    """

    prompt: int = 0
    cached: int = 0
    reused_approximate: int = 0
    recomputed: int = 0
    recomputed_by: dict[RecomputeReason, int] = field(default_factory=dict)
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    forwards: int = 0
    prefill_forwards: int = 0
    preempted: int = 0
    near_ties: int = 0
    by_source: dict[str, SourceUsage] = field(default_factory=dict)
    reused_at: tuple[tuple[int, int], ...] = ()

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt that was cached."""
        return self.cached / self.prompt if self.prompt else 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of one output token's probability, and the likeliest ids with theirs, best first.

    Of the model's own distribution (after bias and penalty, before temperature and the cuts of top-k, top-p, min-p).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """What one forward pass added: `text` is what became certain to be output (it may lag behind the ids).

    `text` ends at the end of a UTF-8 character. Both are empty behind a chunk of the prompt. Of the ids the first
    `num_accepted` were drafted, as `num_drafted` tokens were in this pass; those behind are the model's own, or forced.
    """

    token_ids: tuple[int, ...]
    text: bytes
    logprobs: tuple[TokenLogprob, ...] = ()
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished sequence. `text` is the output's bytes up to the stop, `token_ids` all ids up to the stop id."""

    token_ids: tuple[int, ...]
    text: bytes
    finish_reason: FinishReason
    usage: GenerationUsage = field(compare=False)
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What one step of the engine gave one request; `result` or `error` is the last that the request gets.

    The pass that ends an output gives its last `step` together with the `result`, or before it.
    """

    id: int
    step: GenerationStep | None = None
    result: GenerationResult | None = None
    error: EngineError | None = None
