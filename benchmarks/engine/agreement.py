"""Whether two engines wrote the same: speed is compared only where they did, but for near-ties of bf16 arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.jobs import Answer, Arrival

NEAR_TIE = 0.5
"""Natural logarithm of how much likelier one token may be than another that was taken for it. Logits of bf16 engines
differ by up to a few tenths where they are computed in another order."""

Margin = Callable[[Sequence[int], int, int], float]
"""By how much, after a context, our model finds the first token likelier than the second; natural logarithm."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Outputs compared until they first part; what follows that has another context.

    `first_tokens_wrong` counts outputs whose very first token is another and no near-tie, `parted_far` those that part
    later and at no near-tie.
    """

    outputs: int = 0
    equal: int = 0
    near_ties: int = 0
    parted_far: int = 0
    first_tokens_wrong: int = 0
    tokens_agreed: int = 0
    tokens_compared: int = 0

    @property
    def comparable(self) -> bool:
        """Tell whether the two computed the same thing."""
        return self.first_tokens_wrong == 0 and 2 * self.parted_far <= self.outputs

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def compare(arrivals: Sequence[Arrival], ours: Sequence[Answer], theirs: Sequence[Answer], margin: Margin) -> Agreement:
    """Compare the outputs of one job."""
    assert len(ours) == len(theirs) == len(arrivals)
    return sum(
        (
            _compare(arrival.prompt_ids, own.token_ids, other.token_ids, margin)
            for arrival, own, other in zip(arrivals, ours, theirs, strict=True)
        ),
        Agreement(),
    )


def _compare(prompt: tuple[int, ...], own: tuple[int, ...], other: tuple[int, ...], margin: Margin) -> Agreement:
    agreed = next((at for at, (a, b) in enumerate(zip(own, other, strict=True)) if a != b), len(own))
    if agreed == len(own):
        return Agreement(outputs=1, equal=1, tokens_agreed=agreed, tokens_compared=agreed)
    near = margin((*prompt, *own[:agreed]), own[agreed], other[agreed]) <= NEAR_TIE
    return Agreement(
        outputs=1,
        near_ties=int(near),
        parted_far=int(not near and agreed > 0),
        first_tokens_wrong=int(not near and agreed == 0),
        tokens_agreed=agreed,
        tokens_compared=agreed + 1,
    )
