"""Public values of the engine: requests, results, drafts, usage and KV reuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from engine.errors import EngineError, RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ReuseMode = Literal["exact", "fast", "turbo"]
"""How much KV a prompt takes from earlier prompts.

`exact`: only that of its longest cached prefix, so the answer is that of a cold run. `fast`: also that of unchanged
tokens after a change, except the rest of the changed segment and a share given by a budget. `turbo`: that of all
unchanged tokens.
"""

RecomputeReason = Literal["changed", "segment", "budget", "asked", "tail"]
"""Why a prompt token is computed: `changed`, nothing stored fits it; `segment`, it follows a change in the same
segment; `budget`, the budget chose it; `asked`, the request asks for it; `tail`, it is the last token, whose logits are
needed."""


@dataclass(frozen=True, slots=True)
class PromptSegment:
    """Prompt tokens that a change invalidates as a whole: a definition in a file, or a turn of a conversation."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Reuse:
    """The KV reuse that a request allows. Raises RequestError for values that make no sense.

    segment_ends: the ends of the prompt's segments, in tokens, ascending; the tokens after the last one are one more
    segment. budget: the share, in [0, 1], of the stored tokens after the first change that is computed again (None: the
    mode's default; 1: all, a full prefill). recompute: half-open ranges of the prompt that are computed even if they
    are stored.
    """

    mode: ReuseMode = "exact"
    segment_ends: Sequence[int] = ()
    budget: float | None = None
    recompute: Sequence[tuple[int, int]] = ()

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
    def from_segments(cls, segments: Sequence[PromptSegment], mode: ReuseMode) -> Reuse:
        """Return the reuse for a prompt of these segments."""
        return cls(mode, tuple(accumulate(len(each.token_ids) for each in segments)))


EXACT = Reuse()
"""The reuse of a request that does not set one."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A run of prompt tokens that is stored: tokens [start, start + len(slots)) are in these slots of the span store.

    source: the position of the first token in the prompt that it was stored from. record: the number of that prompt;
    the KV of matches of one record that keep their distance attended to one another. generation: 0 if the stored KV is
    what a full prefill computes; n if it attended to reused KV that had missed n changes.
    """

    start: int
    slots: NDArray[np.int64]
    source: int
    record: int
    generation: int = 0

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.slots)

    def cut(self, start: int, end: int) -> Match:
        """Return the part at positions [start, end), which must lie within the match."""
        assert self.start <= start <= end <= self.end, "the part is not of this match"
        first = start - self.start
        return Match(start, self.slots[first : end - self.start], self.source + first, self.record, self.generation)


FinishReason = Literal["stop", "length"]
"""`stop`: a stop id or stop string came. `length`: the token limit was reached, so the text may be cut off."""


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
"""The allowed range of each number of a request. None is allowed where the field's type says so."""


@dataclass(frozen=True, slots=True)
class DraftRun:
    """Neighbouring draft tokens from one source, which statistics name.

    hazard: the drafter's estimate, in (0, 1), of the probability that the model rejects one of these tokens. The engine
    corrects it by what is accepted and rejected of the source.
    """

    source: str
    num_tokens: int
    hazard: float


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the next tokens. `runs`, in order, name the sources and cover all of `token_ids`."""

    token_ids: Sequence[int]
    runs: tuple[DraftRun, ...]

    @classmethod
    def from_tokens(cls, token_ids: Sequence[int], source: str = "draft", hazard: float = 0.01) -> Draft:
        """Return a draft from one source with the same hazard for every token."""
        return cls(token_ids, (DraftRun(source, len(token_ids), hazard),) if token_ids else ())

    def first(self, num_tokens: int) -> Draft:
        """Return the draft's first `num_tokens` tokens, or all of them if it has fewer."""
        if num_tokens >= len(self.token_ids):
            return self
        runs, left = [], num_tokens
        for run in self.runs:
            if left > 0:
                runs.append(DraftRun(run.source, min(run.num_tokens, left), run.hazard))
                left -= run.num_tokens
        return Draft(self.token_ids[:num_tokens], tuple(runs))


class Proposer(Protocol):
    """A drafter: it proposes the tokens that may come next. A wrong draft costs time; it can change the output only at
    near ties.
    """

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return up to `max_tokens` ids that may follow `output_ids`, the whole output so far."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to continue one sequence.

    prompt: token ids (text only for `ContinuousBatchingEngine`, which has a tokenizer). max_new_tokens: the most ids to
    write. temperature: 0 is greedy. top_k: only the k most likely tokens (0: all). top_p: the smallest set of tokens
    whose probabilities reach it. min_p: only tokens at least min_p times as likely as the most likely one.
    repetition_penalty: logits of tokens in prompt and output are divided by it if positive, multiplied if negative.
    logit_bias: added to the logits of these ids. seed: makes sampling repeatable, whatever else runs. stop_ids: ids
    that end the output and are not part of it. stop: byte strings that end the output and are not part of it. logprobs:
    return for each output token its log-probability and those of this many most likely tokens (0: its own only).
    forced_ids: the output begins with these ids, whatever the model would choose. A pass runs many of them, like
    accepted draft tokens; with `logprobs` each gets its log-probability, without they need no logits. Use them to score
    a given text (teacher forcing) or to begin an answer.

    priority: lower goes first. deadline_s: seconds after submission at which the request fails. retain_s: seconds for
    which its KV is kept before that of other requests when memory is short. salt: KV is shared between equal salts only
    (one for each tenant). adapter: the name of a loaded LoRA adapter. adapter_start: the first token of the prompt that
    it acts on; the bare model computes those before it, so that their KV is shared with requests without an adapter
    (activated LoRA, arXiv 2504.12397). reuse: how much KV of earlier prompts it may take besides its cached prefix;
    with reuse, the output can differ from that of a cold run.
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
    adapter_start: int = 0
    reuse: Reuse = EXACT

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("the prompt is empty; give at least one token")
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if len(self.forced_ids) > self.max_new_tokens:
            raise RequestError(f"{len(self.forced_ids)} forced ids are more than max_new_tokens, {self.max_new_tokens}")
        if self.adapter_start and self.adapter is None:
            raise RequestError("adapter_start is given without an adapter")
        if not 0 <= self.adapter_start < len(self.prompt):
            raise RequestError(
                f"adapter_start is {self.adapter_start}; it must be the place of one of the prompt's tokens"
            )
        if self.adapter_start and self.reuse.mode != "exact":
            raise RequestError("with an adapter_start, only exact KV is reused: leave out `reuse`")
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
    def is_filtered(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt as token ids. Raises RequestError if it is text."""
        if isinstance(self.prompt, str):
            raise RequestError("the prompt is text; the engine takes token ids (ContinuousBatchingEngine takes text)")
        return self.prompt


@dataclass(slots=True)
class SourceUsage:
    """Draft tokens of one source that were verified, those of them that the model accepted, and the passes that
    verified any.
    """

    drafted: int = 0
    accepted: int = 0
    forwards: int = 0

    @property
    def num_rejected(self) -> int:
        """Draft tokens that the model did not write, and those after one."""
        return self.drafted - self.accepted

    def add(self, other: SourceUsage) -> None:
        """Add the counts of another one."""
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.forwards += other.forwards


@dataclass(slots=True)
class GenerationUsage:
    """Token counts of one request; `accepted <= drafted`, the rest was rejected.

    `cached`: prompt tokens that were not computed because their exact KV was cached. `reused_approximate`: prompt
    tokens that took KV from an earlier prompt with another beginning. `recomputed`: prompt tokens that were computed,
    split by reason in `recomputed_by`. The three add up to `prompt`. `preempted`: how often the sequence lost its pages
    to another one and was run again. `prefill_forwards`: those of the `forwards` that ran prompt tokens, including the
    one with the last prompt tokens, which also gives output. `by_source` splits `drafted` and `accepted` by the names
    of the draft's runs. `near_ties`: greedy choices so near a tie that rounding, which depends on what else is in the
    pass, may have decided them. `reused_at`: half-open ranges of the prompt whose tokens `reused_approximate` counts,
    ascending; the cached tokens are the prompt's first ones.
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
        """The share of the prompt that was cached."""
        return self.cached / self.prompt if self.prompt else 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of one output token's probability, and the most likely ids with theirs, best first.

    The distribution is the model's own: after bias and penalty, before temperature, top-k, top-p and min-p.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """What one forward pass added. `text` are the bytes that became certain to be output; they may lag behind the ids.

    `text` ends at the end of a UTF-8 character. Ids and text are empty after a prompt chunk that is not the last.
    `num_drafted` tokens were drafted in this pass; the first `num_accepted` ids are accepted ones, the rest are the
    model's own, or forced.
    """

    token_ids: tuple[int, ...]
    text: bytes
    logprobs: tuple[TokenLogprob, ...] = ()
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished sequence. `text` are the output's bytes up to the stop, `token_ids` all ids up to the stop id."""

    token_ids: tuple[int, ...]
    text: bytes
    finish_reason: FinishReason
    usage: GenerationUsage = field(compare=False)
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What one step of the engine gave one request; `result` or `error` is the last output of a request.

    The pass that ends an output gives its last `step` together with the `result`, or before it.
    """

    id: int
    step: GenerationStep | None = None
    result: GenerationResult | None = None
    error: EngineError | None = None


FIRST_CHUNK = 64
"""Tokens compared at once; each further chunk is twice as long. Most sequences differ early, some after thousands."""

TokenIds: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]]"


def count_common_prefix(one: TokenIds, other: TokenIds) -> int:
    """Return how many tokens the two sequences have in common at their beginning.

    It is what a prefix cache can reuse of one prompt for the other. Example: [1, 2, 3] and [1, 2] have 2.
    """
    import numpy as np  # takes 0.1 s, and types do without it

    count = min(len(one), len(other))
    first, size = 0, FIRST_CHUNK
    while first < count:
        end = min(first + size, count)
        differ = np.asarray(one[first:end]) != np.asarray(other[first:end])
        index = int(differ.argmax())
        if differ[index]:
            return first + index
        first, size = end, 2 * size
    return count
