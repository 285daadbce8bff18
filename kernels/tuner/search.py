"""Searches the fastest valid variant of a kernel by successive halving.

Of 100 variants, all are timed 3 times, 34 of them 6 times more, 12 of them 12 times more, and the last 4 another 48
times. Most of the time goes to the variants that are hardest to tell apart.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import ceil
from random import Random
from statistics import median
from typing import Protocol, runtime_checkable

import torch

from kernels.op import Op, Shape, Variant
from kernels.tuner.store import Store, Timing, Versions, Winner, get_dtype_name, get_winner_key

MIN_PROOFS, MAX_PROOFS = 3, 6
"""Shapes at which a variant is checked; each may need a compilation."""


@runtime_checkable
class SharedMemoryCounter(Protocol):
    """An op that can compute the shared memory of a variant in advance; for other ops the compiler reports it."""

    def count_shared_bytes(self, variant: Variant, shape: Shape, dtype: torch.dtype) -> int:
        """Return a lower bound of the shared memory of one block of threads."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The subject of one search: shapes of one class in one dtype."""

    op: Op
    dtype: torch.dtype
    shape_class: str
    shapes: tuple[Shape, ...]

    @property
    def key(self) -> str:
        """The winner's key: 'paged_attention bfloat16 head_dim=128 group=7 rows=1'."""
        return get_winner_key(self.op.name, self.dtype, self.shape_class)


def group_targets(op: Op, dtype: torch.dtype, shapes: Sequence[Shape]) -> list[Target]:
    """Group shapes by class, in the order of the first shape of each class."""
    classes: dict[str, list[Shape]] = {}
    for shape in shapes:
        classes.setdefault(op.shape_class(shape), []).append(shape)
    return [Target(op, dtype, name, tuple(found)) for name, found in classes.items()]


def list_variants(space: Mapping[str, Sequence[int]]) -> list[Variant]:
    """Return every combination of the values in a space."""
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]


def list_valid_variants(target: Target, shared_bytes: int | None = None) -> list[Variant]:
    """Return the declared variants that can run all of a target's shapes; `shared_bytes` is the card's limit, if known.

    The defaults are always included, declared or not: a winner has to be faster than what runs without tuning.
    """
    found = [variant for variant in list_variants(target.op.space) if _can_run(variant, target, shared_bytes)]
    for shape in target.shapes:
        default = dict(target.op.default(shape))
        if default not in found and _can_run(default, target, shared_bytes):
            found.append(default)
    return found


def _can_run(variant: Variant, target: Target, shared_bytes: int | None) -> bool:
    op = target.op
    if not all(op.is_valid(variant, shape) for shape in target.shapes):
        return False
    if shared_bytes is None or not isinstance(op, SharedMemoryCounter):
        return True
    return all(op.count_shared_bytes(variant, shape, target.dtype) <= shared_bytes for shape in target.shapes)


def select_proof_shapes(target: Target, variant: Variant) -> list[Shape]:
    """Return the shapes at which a variant must be correct before it is timed.

    These are the parity shapes that it can run, those of its own class first. If there are few (a variant for long
    contexts cannot run short ones), the target's own shapes are added.
    """
    op = target.op
    small = [shape for shape in op.parity_shapes if op.is_valid(variant, shape)]
    small.sort(key=lambda shape: op.shape_class(shape) != target.shape_class)
    return [*small[:MAX_PROOFS], *target.shapes[: max(0, MIN_PROOFS - len(small))]]


FIRST_REPEATS = 3
KEPT_SHARE = 1 / 3
NUM_FINALISTS = 4
FINAL_REPEATS = 48

Sample = Callable[[Variant], tuple[float, ...]]


def halve(
    candidates: Sequence[Variant],
    sample: Sample,
    random: Random,
    *,
    baseline: Variant | None = None,
    on_drop: Callable[[Variant], None] = lambda variant: None,
    is_expired: Callable[[], bool] = lambda: False,
) -> list[Timing]:
    """Return the finalists, fastest first, including the baseline; more of them if the time expires early.

    Each round runs every variant once in random order, so drift (clocks, heat, a neighbour) affects all of them alike.
    """
    samples: list[list[tuple[float, ...]]] = [[] for _ in candidates]
    left, repeats = list(range(len(candidates))), FIRST_REPEATS
    while left:
        is_final = len(left) <= NUM_FINALISTS + 1
        for _ in range(FINAL_REPEATS if is_final else repeats):
            for index in random.sample(left, len(left)):
                samples[index].append(sample(candidates[index]))
            if is_expired():
                break
        timed = {index: _take_median(candidates[index], samples[index]) for index in left}
        left.sort(key=lambda index: timed[index].score)
        if is_final or is_expired():
            return [timed[index] for index in left]
        num_kept = max(NUM_FINALISTS, ceil(len(left) * KEPT_SHARE))
        for index in [index for index in left[num_kept:] if candidates[index] != baseline]:
            left.remove(index)
            on_drop(candidates[index])
        repeats *= 2
    return []


def _take_median(variant: Variant, samples: Sequence[tuple[float, ...]]) -> Timing:
    return Timing(variant, tuple(median(times) for times in zip(*samples, strict=True)), len(samples))


class LaunchFailed(Exception):
    """The card cannot run this variant: it exceeds the limits of a block, or does not compile."""


class CardFailed(Exception):
    """A variant left the card in a state in which this process cannot use it any more."""


class Timer(Protocol):
    """Times variants of one op at the shapes of one target."""

    def prepare(self, variant: Variant) -> None:
        """Compile a variant and run it once at every shape. Raises LaunchFailed."""
        ...

    def sample(self, variant: Variant) -> tuple[float, ...]:
        """Return one sample of a prepared variant: the time of one run, for each shape."""
        ...

    def release(self, variant: Variant) -> None:
        """Free a variant that will not be timed any more."""
        ...


ADMITTED, WRONG, DOES_NOT_LAUNCH, FAILED_CARD = "admitted", "wrong", "does not launch", "failed the card"
NOT_PROVED, NOT_TRIED = "the reference is too large", "not tried"

Check = Callable[[Variant, Shape], float]
"""Returns the error of a variant at a shape. Raises LaunchFailed, CardFailed, or MemoryError for its reference."""


class Admission:
    """Decides which variants may be timed, and keeps the outcomes of a search by variant.

    `save` is called before and after each trial. A variant that crashes the process counts as having failed the card,
    and the next process does not try it first.
    """

    def __init__(
        self,
        check: Check,
        bound: float,
        prepare: Callable[[Variant], None],
        outcomes: dict[str, str],
        save: Callable[[], None],
    ) -> None:
        self._check, self._bound, self._prepare = check, bound, prepare
        self._outcomes = outcomes
        self._save = save

    def admit(self, variant: Variant, proofs: Sequence[Shape]) -> bool:
        """Return whether a variant is correct at the proof shapes, once proved, and prepared for the timer."""
        known = self._outcomes.get(get_variant_key(variant))
        if known not in (None, ADMITTED):
            return False

        def attempt() -> str:
            outcome = known or self._prove(variant, proofs)
            if outcome == ADMITTED:
                self._prepare(variant)
            return outcome

        return self._record_outcome(variant, attempt) == ADMITTED

    def confirm(self, variant: Variant, shape: Shape) -> bool:
        """Return whether an admitted variant is correct at one more shape. Raises MemoryError if it cannot be
        checked.
        """

        def attempt() -> str:
            return ADMITTED if self._check(variant, shape) <= self._bound else WRONG

        return self._record_outcome(variant, attempt) == ADMITTED

    def count_outcomes(self, num_variants: int) -> dict[str, int]:
        """Count the variants with each outcome, most frequent first."""
        found = Counter(self._outcomes.values())
        found[NOT_TRIED] = num_variants - found.total()
        return {outcome: count for outcome, count in found.most_common() if count}

    def _prove(self, variant: Variant, shapes: Sequence[Shape]) -> str:
        num_proved = 0
        for shape in shapes:
            with suppress(MemoryError):
                if not self._check(variant, shape) <= self._bound:
                    return WRONG
                num_proved += 1
        return ADMITTED if num_proved else NOT_PROVED

    def _record_outcome(self, variant: Variant, attempt: Callable[[], str]) -> str:
        key = get_variant_key(variant)
        before = self._outcomes.get(key)
        self._outcomes[key] = FAILED_CARD
        self._save()
        try:
            self._outcomes[key] = attempt()
        except LaunchFailed:
            self._outcomes[key] = DOES_NOT_LAUNCH
        except CardFailed:
            raise
        except BaseException:  # Ctrl-C, out of memory, a fault of the op: not a fault of this variant
            self._outcomes.pop(key)
            if before is not None:
                self._outcomes[key] = before
            raise
        finally:
            self._save()
        return self._outcomes[key]


def get_variant_key(variant: Variant) -> str:
    """Return the same JSON for equal variants: '{"num_stages": 3, "num_warps": 4}'."""
    return json.dumps(dict(variant), sort_keys=True)


ADMISSION_SHARE = 0.8
"""The share of a search's time for compiling and proving; the rest is for timing."""

REPORT_EVERY_S = 5.0


class NoCorrectVariant(Exception):
    """No variant launches and is correct; the message counts the outcomes."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The time limit of a search."""

    clock: Callable[[], float]
    start: float
    seconds: float

    def is_spent(self, share: float = 1.0) -> bool:
        return self.clock() - self.start >= share * self.seconds


@dataclass(slots=True)
class Search:
    """The search of one target. What it needs of the card is passed in: the error of a variant, and its time."""

    target: Target
    variants: Sequence[Variant]
    check: Check
    bound: float
    timer: Timer
    store: Store
    versions: Versions
    budget: Budget
    seed: int
    say: Callable[[str], None]

    def run(self) -> Winner:
        """Find and store the winner, resuming an interrupted search. Raises NoCorrectVariant or CardFailed."""
        random = Random(self.seed)
        default = dict(self.target.op.default(self.target.shapes[0]))
        admission = self._make_admission()
        admitted, all_tried = self._admit(admission, self._order_variants(default, random))
        self.say(f"{self.target.key}: timing {len(admitted)} variants")
        timed = halve(
            admitted,
            self.timer.sample,
            random,
            baseline=default,
            on_drop=self.timer.release,
            is_expired=self.budget.is_spent,
        )
        right = [each for each in timed if self._is_right_at_full_size(admission, each.variant)]
        outcomes = admission.count_outcomes(len(self.variants))
        if not right:
            raise NoCorrectVariant(f"{self.target.key}: no variant is right ({format_counts(outcomes)})")
        return self._store_winner(self._make_winner(right, default, outcomes, all_tried))

    def _make_admission(self) -> Admission:
        outcomes = self.store.read_outcomes(self.target.key, self.versions)
        if outcomes:
            self.say(f"{self.target.key}: {len(outcomes)} variants were tried before, and are not proved again")

        def save() -> None:
            self.store.write_outcomes(self.target.key, self.versions, outcomes)

        return Admission(self.check, self.bound, self.timer.prepare, outcomes, save)

    def _order_variants(self, default: Variant, random: Random) -> list[Variant]:
        """Return the default first and the others in random order: a search that ends early has tried a fair sample."""
        others = [variant for variant in self.variants if variant != default]
        random.shuffle(others)
        return [default, *others] if len(others) < len(self.variants) else others

    def _admit(self, admission: Admission, order: Sequence[Variant]) -> tuple[list[Variant], bool]:
        """Return the variants that may be timed, and whether there was time to try all."""
        admitted: list[Variant] = []
        reported = self.budget.clock()
        for num_tried, variant in enumerate(order):
            if self.budget.is_spent(ADMISSION_SHARE):
                return admitted, False
            if admission.admit(variant, select_proof_shapes(self.target, variant)):
                admitted.append(variant)
            if self.budget.clock() - reported >= REPORT_EVERY_S:
                reported = self.budget.clock()
                self.say(f"{self.target.key}: {num_tried + 1} of {len(order)} tried, {len(admitted)} may be timed")
        return admitted, True

    def _is_right_at_full_size(self, admission: Admission, variant: Variant) -> bool:
        """Check the target's own shapes: long contexts can fail in other ways, such as an offset beyond 32 bits."""
        for shape in self.target.shapes:
            try:
                if not admission.confirm(variant, shape):
                    return False
            except MemoryError:
                self.say(f"{self.target.key}: the card cannot hold the reference of {dict(shape)}; not proved there")
        return True

    def _store_winner(self, winner: Winner) -> Winner:
        """Store the winner, unless an earlier search was complete and this one was not."""
        before = self.store.read_winners().get(winner.key)
        holds = before is not None and before.versions.match(self.versions.source, self.versions.triton)
        if before is not None and holds and before.is_complete and not winner.is_complete:
            self.say(f"{winner.key}: the time was over; the winner of a whole search is kept")
            return before
        self.store.write_winner(winner)
        return winner

    def _make_winner(
        self, finalists: Sequence[Timing], default: Variant, outcomes: dict[str, int], all_tried: bool
    ) -> Winner:
        return Winner(
            op=self.target.op.name,
            dtype=get_dtype_name(self.target.dtype),
            shape_class=self.target.shape_class,
            best=finalists[0],
            default=next((each for each in finalists if each.variant == default), None),
            runners_up=tuple(finalists[1:]),
            shapes=self.target.shapes,
            outcomes=outcomes,
            is_complete=all_tried and finalists[0].num_samples >= FINAL_REPEATS,
            seed=self.seed,
            versions=self.versions,
        )


def format_counts(counts: dict[str, int]) -> str:
    """Return '120 admitted, 30 does not launch'."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "the space has none for these shapes"
