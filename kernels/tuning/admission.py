"""Which variants may be timed: those that launch, and are right wherever they were proved."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from kernels.op import Shape, Variant
from kernels.tuning.timer import CardFailed, DoesNotLaunch

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
