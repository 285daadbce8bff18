"""What the tuner found: a winner, the numbers that chose it, and what they were measured with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernels.op import Shape
from kernels.tuning.card import Card
from kernels.tuning.halving import Timed


@dataclass(frozen=True, slots=True)
class Versions:
    """What a time depends on besides the card."""

    source: str
    """`kernels.tuning.source.source_hash` of the op."""
    driver: str
    torch: str
    triton: str

    @classmethod
    def of(cls, card: Card, source: str) -> Versions:
        return cls(source=source, driver=card.driver, torch=card.torch, triton=card.triton)

    def hold_for(self, source: str, triton: str) -> bool:
        """Whether the same variant is still the same program: then what was measured is still true of it."""
        return (self.source, self.triton) == (source, triton)


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest variant that is right, for shapes of one class of one op in one dtype."""

    op: str
    dtype: str
    shape_class: str
    best: Timed
    default: Timed | None
    """What runs where nothing was tuned; None: it is not right here, or does not launch."""
    runners_up: tuple[Timed, ...]
    shapes: tuple[Shape, ...]
    """The times are of these, one each."""
    outcomes: Mapping[str, int]
    """How many variants were admitted, and how many were not and why."""
    is_complete: bool
    """Whether the whole space was tried, and the finalists as often as they have to be."""
    seed: int
    versions: Versions

    @property
    def key(self) -> str:
        """As `kernels.tuning.space.winner_key`."""
        return f"{self.op} {self.dtype} {self.shape_class}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Winner:
        """Raises KeyError, TypeError or ValueError where `raw` is no winner."""
        fields = dict(raw)
        default = fields.pop("default")
        return cls(
            best=_timed(fields.pop("best")),
            default=None if default is None else _timed(default),
            runners_up=tuple(map(_timed, fields.pop("runners_up"))),
            shapes=tuple(map(_sizes, fields.pop("shapes"))),
            outcomes=_sizes(fields.pop("outcomes")),
            versions=Versions(**fields.pop("versions")),
            **fields,
        )


def _timed(raw: Mapping[str, Any]) -> Timed:
    return Timed(_sizes(raw["variant"]), tuple(map(float, raw["seconds"])), int(raw["num_samples"]))


def _sizes(raw: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(value) is int for value in raw.values()):
        raise ValueError(f"{raw!r} has values that are no whole numbers")
    return dict(raw)
