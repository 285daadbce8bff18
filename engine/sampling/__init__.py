"""From logits to tokens: what one request asks of the choice, row by row."""

from engine.sampling.greedy import greedy
from engine.sampling.sampler import Choice, Sampler

__all__ = ["Choice", "Sampler", "greedy"]
