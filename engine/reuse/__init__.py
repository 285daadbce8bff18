"""Reuse of KV across turns: which stored KV of earlier prompts a prompt takes, and which tokens are computed again."""

from engine.reuse.plan import ReusePlan, plan_reuse
from engine.types import EXACT, Match, PromptSegment, RecomputeReason, Reuse, ReuseMode

__all__ = [
    "EXACT",
    "Match",
    "PromptSegment",
    "RecomputeReason",
    "Reuse",
    "ReuseMode",
    "ReusePlan",
    "plan_reuse",
]
