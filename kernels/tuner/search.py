"""Searches the fastest valid variant of a kernel."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from kernels.op import Shape, Variant
from kernels.tuner.space import (
    FINAL_REPEATS,
    CardFailed,
    DoesNotLaunch,
    Target,
    Timed,
    Timer,
    dtype_name,
    halve,
    proofs,
)
from kernels.tuner.store import Store, Versions, Winner

ADMITTED, WRONG, DOES_NOT_LAUNCH, FAILED_CARD = "admitted", "wrong", "does not launch", "failed the card"
UNPROVED, UNTRIED = "the reference is too large", "not tried"

Check = Callable[[Variant, Shape], float]
"""The error of a variant at a shape; raises DoesNotLaunch, CardFailed, or MemoryError if the reference is too large."""


class Admission:
    """The outcomes of a search so far, by variant, and what a variant has to go through.

    `save` is called before and after each trial: a variant that takes the process down with it has failed the card, and
    is not the first that the next process tries.
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

    def admits(self, variant: Variant, proofs: Sequence[Shape]) -> bool:
        """Whether a variant is right at the proofs, and is now prepared for the timer. Proved once, it stays proved."""
        known = self._outcomes.get(variant_key(variant))
        if known not in (None, ADMITTED):
            return False

        def attempt() -> str:
            outcome = known or self._proved(variant, proofs)
            if outcome == ADMITTED:
                self._prepare(variant)
            return outcome

        return self._outcome(variant, attempt) == ADMITTED

    def confirms(self, variant: Variant, shape: Shape) -> bool:
        """Whether an admitted variant is right at one more shape; raises MemoryError where that cannot be known."""

        def attempt() -> str:
            return ADMITTED if self._check(variant, shape) <= self._bound else WRONG

        return self._outcome(variant, attempt) == ADMITTED

    def counts(self, num_variants: int) -> dict[str, int]:
        """How many variants had each outcome, the most frequent first."""
        found = Counter(self._outcomes.values())
        found[UNTRIED] = num_variants - found.total()
        return {outcome: count for outcome, count in found.most_common() if count}

    def _proved(self, variant: Variant, shapes: Sequence[Shape]) -> str:
        num_proved = 0
        for shape in shapes:
            with suppress(MemoryError):
                if not self._check(variant, shape) <= self._bound:
                    return WRONG
                num_proved += 1
        return ADMITTED if num_proved else UNPROVED

    def _outcome(self, variant: Variant, attempt: Callable[[], str]) -> str:
        key = variant_key(variant)
        before = self._outcomes.get(key)
        self._outcomes[key] = FAILED_CARD
        self._save()
        try:
            self._outcomes[key] = attempt()
        except DoesNotLaunch:
            self._outcomes[key] = DOES_NOT_LAUNCH
        except CardFailed:
            raise
        except BaseException:  # Ctrl-C, too little memory, a fault of the op's description: not this variant's
            self._outcomes.pop(key)
            if before is not None:
                self._outcomes[key] = before
            raise
        finally:
            self._save()
        return self._outcomes[key]


def variant_key(variant: Variant) -> str:
    """The same for equal variants: '{"num_stages": 3, "num_warps": 4}'."""
    return json.dumps(dict(variant), sort_keys=True)


ADMISSION_SHARE = 0.8
"""Of a search's time, what compiling and proving may take; the rest is for timing."""

REPORT_EVERY_S = 5.0


class NothingRight(Exception):
    """No variant of the space launches and is right; the message counts why."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much time a search may take, by a clock."""

    clock: Callable[[], float]
    start: float
    seconds: float

    def is_spent(self, share: float = 1.0) -> bool:
        return self.clock() - self.start >= share * self.seconds


@dataclass(slots=True)
class Search:
    """One target's search, with what it asks of the card passed in: how wrong a variant is, and how long it takes."""

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
        """The winner, stored. A search that is broken off goes on where it was; raises NothingRight, CardFailed."""
        random = Random(self.seed)
        default = dict(self.target.op.default(self.target.shapes[0]))
        admission = self._admission()
        admitted, all_tried = self._admit(admission, self._order(default, random))
        self.say(f"{self.target.key}: timing {len(admitted)} variants")
        timed = halve(
            admitted,
            self.timer.seconds,
            random,
            baseline=default,
            dropped=self.timer.release,
            expired=self.budget.is_spent,
        )
        right = [each for each in timed if self._is_right_at_full_size(admission, each.variant)]
        outcomes = admission.counts(len(self.variants))
        if not right:
            raise NothingRight(f"{self.target.key}: no variant is right ({listed(outcomes)})")
        return self._stored(self._winner(right, default, outcomes, all_tried))

    def _admission(self) -> Admission:
        outcomes = self.store.tried(self.target.key, self.versions)
        if outcomes:
            self.say(f"{self.target.key}: {len(outcomes)} variants were tried before, and are not proved again")

        def save() -> None:
            self.store.put_tried(self.target.key, self.versions, outcomes)

        return Admission(self.check, self.bound, self.timer.prepare, outcomes, save)

    def _order(self, default: Variant, random: Random) -> list[Variant]:
        """The default first, the others in any order: where the time ends early, a fair sample was tried."""
        others = [variant for variant in self.variants if variant != default]
        random.shuffle(others)
        return [default, *others] if len(others) < len(self.variants) else others

    def _admit(self, admission: Admission, order: Sequence[Variant]) -> tuple[list[Variant], bool]:
        """The variants that may be timed, and whether the time was enough to try all."""
        admitted: list[Variant] = []
        reported = self.budget.clock()
        for num_tried, variant in enumerate(order):
            if self.budget.is_spent(ADMISSION_SHARE):
                return admitted, False
            if admission.admits(variant, proofs(self.target, variant)):
                admitted.append(variant)
            if self.budget.clock() - reported >= REPORT_EVERY_S:
                reported = self.budget.clock()
                self.say(f"{self.target.key}: {num_tried + 1} of {len(order)} tried, {len(admitted)} may be timed")
        return admitted, True

    def _is_right_at_full_size(self, admission: Admission, variant: Variant) -> bool:
        """Long contexts have faults of their own: an offset beyond 32 bits."""
        for shape in self.target.shapes:
            try:
                if not admission.confirms(variant, shape):
                    return False
            except MemoryError:
                self.say(f"{self.target.key}: the card cannot hold the reference of {dict(shape)}; not proved there")
        return True

    def _stored(self, winner: Winner) -> Winner:
        """A search whose time was over does not replace the winner of one that came to its end."""
        before = self.store.winners().get(winner.key)
        holds = before is not None and before.versions.hold_for(self.versions.source, self.versions.triton)
        if before is not None and holds and before.is_complete and not winner.is_complete:
            self.say(f"{winner.key}: the time was over; the winner of a whole search is kept")
            return before
        self.store.put(winner)
        return winner

    def _winner(
        self, finalists: Sequence[Timed], default: Variant, outcomes: dict[str, int], all_tried: bool
    ) -> Winner:
        return Winner(
            op=self.target.op.name,
            dtype=dtype_name(self.target.dtype),
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


def listed(counts: dict[str, int]) -> str:
    """'120 admitted, 30 does not launch'."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "the space has none for these shapes"
