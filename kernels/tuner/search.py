"""The search for one winner: prove variants, time the right ones by successive halving, prove the fastest again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from kernels.op import Variant
from kernels.tuning.admission import Admission, Check
from kernels.tuning.halving import FINAL_REPEATS, Timed, halve
from kernels.tuning.record import Versions, Winner
from kernels.tuning.space import Target, dtype_name, proofs
from kernels.tuning.store import Store
from kernels.tuning.timer import Timer

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
