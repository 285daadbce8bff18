"""Reuse of KV across turns: what is stored of earlier prompts, what of it a prompt can take, what is run again."""

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
