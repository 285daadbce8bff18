"""Chooses tokens from logits as one request asks, row by row."""

from engine.sampling.logits import check_largest, is_near_tie
from engine.sampling.sampler import Choice, Sampler

__all__ = ["Choice", "Sampler", "check_largest", "is_near_tie"]
