"""How long a variant takes: what the search asks of a card, and of a fake of it in tests."""

from __future__ import annotations

from typing import Protocol

from kernels.op import Variant


class DoesNotLaunch(Exception):
    """The card cannot run this variant: it takes more than a block may have, or does not compile."""


class CardFailed(Exception):
    """A variant brought the card into a state in which this process can do nothing more with it."""


class Timer(Protocol):
    """Times variants of one op at the shapes of one target."""

    def prepare(self, variant: Variant) -> None:
        """Compile a variant and run it once at every shape; raises DoesNotLaunch."""
        ...

    def seconds(self, variant: Variant) -> tuple[float, ...]:
        """One sample of a prepared variant: the time of one run, for each shape."""
        ...

    def release(self, variant: Variant) -> None:
        """The variant is not going to be timed any more."""
        ...
