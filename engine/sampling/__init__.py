"""From logits to tokens: what one request asks of the choice, row by row."""

from engine.sampling.logits import check_largest, is_near_tie
from engine.sampling.sampler import Choice, Sampler

__all__ = ["Choice", "Sampler", "check_largest", "is_near_tie"]
