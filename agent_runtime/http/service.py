"""The finished parts that the routes use."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyio import CapacityLimiter

from agent_runtime.apply import Applier
from agent_runtime.http.idempotency import KeptAnswers
from agent_runtime.model_slot import ModelSlot
from agent_runtime.observing import Observer
from agent_runtime.workspaces import Workspaces

MAX_APPLIES = 1024
"""Edits that are worked on at once, a thread each; of those the model takes no more than its queue holds (429)."""


@dataclass(frozen=True, slots=True)
class Service:
    """What one service is made of; `threads` are those in which requests are worked on."""

    applier: Applier
    model: ModelSlot
    workspaces: Workspaces = field(default_factory=Workspaces)
    observer: Observer = field(default_factory=Observer)
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(MAX_APPLIES))
    answers: KeptAnswers = field(default_factory=KeptAnswers)
