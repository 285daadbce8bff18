"""Work for idle time: exact recomputation of prompts that reused KV, and audits of the approximation."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.types import GenerationRequest, ReuseMode, TokenLogprob, count_common_prefix

MOST_TASKS = 8
"""Tasks that are kept; the oldest is dropped: a prompt answered long ago is seldom the beginning of the next one."""

LEAST_ALIKE = 0.5
"""A newer prompt that begins with this share of an older one's tokens is taken as the next turn of its conversation."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleTask:
    """A finished request that reused KV, whose prompt is to be run exactly.

    root: the key under which its KV is shared. audited_ids: the beginning of its output, if its answer is to be
    compared with that of an exact run, else nothing. approximate: the log-probabilities of those tokens on reused KV,
    once they are computed.
    """

    request: GenerationRequest
    root: bytes
    audited_ids: tuple[int, ...] = ()
    approximate: tuple[TokenLogprob, ...] = ()

    @property
    def is_to_be_compared(self) -> bool:
        """Whether it must first be run on reused KV."""
        return bool(self.audited_ids) and not self.approximate


@dataclass(slots=True)
class IdleCounts:
    """Counts of idle work since the start.

    `rebuilt`: prompts that now have exact KV, which took `rebuilt_tokens` computed tokens. `interrupted`: how often a
    task was preempted. `superseded`: tasks that a newer prompt with the same beginning made useless. `dropped`: tasks
    for which there was no room or that could not be run. `audited`: answers that were compared.
    """

    rebuilt: int = 0
    rebuilt_tokens: int = 0
    interrupted: int = 0
    superseded: int = 0
    dropped: int = 0
    audited: int = 0


class IdleQueue:
    """Tasks, the newest first. Not thread-safe."""

    def __init__(self, counts: IdleCounts, most: int = MOST_TASKS) -> None:
        assert most > 0, "a queue that holds nothing"
        self._counts = counts
        self._most = most
        self._tasks: list[IdleTask] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def push(self, task: IdleTask) -> None:
        """Add the newest task; tasks of older prompts of the same conversation are removed."""
        kept = [each for each in self._tasks if not _supersedes(task, each)]
        self._counts.superseded += len(self._tasks) - len(kept)
        kept.append(task)
        self._counts.dropped += max(0, len(kept) - self._most)
        self._tasks = kept[-self._most :]

    def pop(self) -> IdleTask | None:
        """Remove and return the newest task; None if there is none."""
        return self._tasks.pop() if self._tasks else None

    def clear(self) -> None:
        """Remove all tasks."""
        self._tasks.clear()


def _supersedes(newer: IdleTask, older: IdleTask) -> bool:
    if newer.root != older.root:
        return False
    prompt = older.request.prompt_ids
    return count_common_prefix(newer.request.prompt_ids, prompt) >= LEAST_ALIKE * len(prompt)


LIKELIEST = 20
"""Tokens whose probabilities are compared one by one; the others are compared as one."""

MOST_CLASSES = 4096
"""Classes that are counted separately; later ones share one for each model and mode."""

NEAR_TIE = 0.25
"""If two tokens are this near in an exact run (in nats), either may be the most likely: in bfloat16, whose logits move
against each other by up to 1.6 %, three of 192 tokens differ between two ways to split the same prompt into passes."""

LEAST_REST = 1e-9
"""No model leaves less probability than this to the other tokens; a smaller computed value is rounding."""


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """Which approximate answers are audited and what follows; raises ValueError for values that make no sense.

    share: of the approximate requests, drawn with `seed`. most_tokens: tokens of an output that are compared. max_kl:
    of the approximate distributions from the exact ones, the mean over tokens, in nats. min_agreement: the share of
    tokens at which both have the same most likely token, near ties excluded. fewest_tokens: tokens compared before the
    budget of a class is raised, by `step_up`; after `calm_factor` times as many with at most half of either error it is
    lowered by `step_down`, never below the mode's default. half_life: tokens after which an older comparison counts
    half.
    """

    share: float = 0.0
    seed: int = 0
    most_tokens: int = 64
    max_kl: float = 0.01
    min_agreement: float = 0.99
    fewest_tokens: int = 256
    calm_factor: int = 8
    half_life: int = 4096
    step_up: float = 0.05
    step_down: float = 0.01

    def __post_init__(self) -> None:
        for name in ("share", "min_agreement", "step_up", "step_down"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1]")
        for name in ("most_tokens", "fewest_tokens", "calm_factor", "half_life"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.max_kl > 0.0:  # a NaN fails too
            raise ValueError(f"max_kl is {self.max_kl}; it must be above 0")


@dataclass(frozen=True, slots=True)
class AuditClass:
    """Requests that are judged together: of one model, one mode and one root.

    root: hex of the key under which their KV is shared, so that no tenant raises the budget of another.
    """

    fingerprint: str
    mode: ReuseMode
    root: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of the same tokens on exact and on approximate KV; `kl` is the sum over them, in nats."""

    num_tokens: int
    num_agreed: int
    kl: float


@dataclass(frozen=True, slots=True)
class AuditEstimate:
    """The estimate of a class: the share of stored tokens that its requests compute again beyond the mode's default,
    and the running means of the comparisons since that share last changed.

    num_tokens: the tokens of those means; older ones count less.
    """

    raised_by: float
    num_audits: int
    num_tokens: float
    kl: float
    agreement: float


def compare(exact: Sequence[TokenLogprob], approximate: Sequence[TokenLogprob]) -> Comparison:
    """Compare two runs of the same tokens, each with the LIKELIEST tokens at every position.

    The divergence is that of the tokens that both runs name and of all others as one, which is at most the true one.
    """
    pairs = list(zip(exact, approximate, strict=True))
    assert all(one.token_id == other.token_id and one.top and other.top for one, other in pairs), "of different runs"
    agreed = sum(_agree(one, other) for one, other in pairs)
    return Comparison(
        len(pairs), agreed, sum(_compute_divergence(dict(one.top), dict(other.top)) for one, other in pairs)
    )


def _agree(exact: TokenLogprob, approximate: TokenLogprob) -> bool:
    """Return whether the most likely token is the exact run's, or nearly as likely there."""
    (_, largest), chosen = exact.top[0], approximate.top[0][0]
    return dict(exact.top).get(chosen, -math.inf) >= largest - NEAR_TIE


def _compute_divergence(exact: Mapping[int, float], approximate: Mapping[int, float]) -> float:
    """Return KL(exact || approximate) of two maps from token ids to log-probabilities."""
    named = exact.keys() & approximate.keys()
    total = sum(math.exp(exact[each]) * (exact[each] - approximate[each]) for each in named)
    rest, other_rest = (
        max(LEAST_REST, 1.0 - sum(math.exp(part[each]) for each in named)) for part in (exact, approximate)
    )
    return max(0.0, total + rest * math.log(rest / other_rest))


class _Running:
    """The running means of one class, and the increase of its budget."""

    def __init__(self) -> None:
        self.raised_by = 0.0
        self.num_audits = 0
        self._num_tokens = self._num_agreed = self._kl = 0.0

    def add(self, found: Comparison, half_life: int) -> None:
        """Add a comparison."""
        left = 0.5 ** (found.num_tokens / half_life)
        self.num_audits += 1
        self._num_tokens = self._num_tokens * left + found.num_tokens
        self._num_agreed = self._num_agreed * left + found.num_agreed
        self._kl = self._kl * left + found.kl

    def raise_by(self, step: float) -> None:
        """Change the budget; earlier comparisons say nothing about the new one."""
        self.raised_by = min(1.0, max(0.0, self.raised_by + step))
        self._num_tokens = self._num_agreed = self._kl = 0.0

    def estimate(self) -> AuditEstimate:
        """Return the means; without comparisons, those of a perfect match."""
        count = self._num_tokens or 1.0
        agreement = self._num_agreed / count if self._num_tokens else 1.0
        return AuditEstimate(self.raised_by, self.num_audits, self._num_tokens, self._kl / count, agreement)


class AuditPolicy:
    """Draws the requests to audit, and adjusts the budget of each class. Not thread-safe."""

    def __init__(self, config: AuditConfig) -> None:
        self.config = config
        self._random = random.Random(config.seed)  # a sample, no secret
        self._classes: dict[AuditClass, _Running] = {}

    def is_drawn(self) -> bool:
        """Draw whether the approximate request that has just ended is audited."""
        return self._random.random() < self.config.share

    def get_extra_budget(self, of: AuditClass) -> float:
        """Return the share of stored tokens that requests of this class compute again beyond the mode's default."""
        known = self._classes.get(self._limit_class(of))
        return 0.0 if known is None else known.raised_by

    def book(self, of: AuditClass, found: Comparison) -> None:
        """Add a comparison; raise or lower the budget of its class if enough of them say so."""
        of = self._limit_class(of)
        if of not in self._classes:
            self._classes[of] = _Running()
        own = self._classes[of]
        own.add(found, self.config.half_life)
        estimate = own.estimate()
        if self._is_too_far(estimate):
            own.raise_by(self.config.step_up)
        elif own.raised_by and self._is_calm(estimate):
            own.raise_by(-self.config.step_down)

    def estimates(self) -> dict[AuditClass, AuditEstimate]:
        """Return the estimate of each class."""
        return {of: own.estimate() for of, own in self._classes.items()}

    def _limit_class(self, of: AuditClass) -> AuditClass:
        """Return the class; if there are too many roots, the first ones are kept, and later ones share a class."""
        if of in self._classes or len(self._classes) < MOST_CLASSES:
            return of
        return AuditClass(of.fingerprint, of.mode)

    def _is_too_far(self, found: AuditEstimate) -> bool:
        if found.num_tokens < self.config.fewest_tokens:
            return False
        return found.kl > self.config.max_kl or found.agreement < self.config.min_agreement

    def _is_calm(self, found: AuditEstimate) -> bool:
        if found.num_tokens < self.config.calm_factor * self.config.fewest_tokens:
            return False
        return found.kl <= self.config.max_kl / 2 and 1 - found.agreement <= (1 - self.config.min_agreement) / 2
