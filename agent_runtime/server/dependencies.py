"""The parts that the routes use."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyio import CapacityLimiter
from opentelemetry.trace import TracerProvider

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.rule_process import RULE_SECONDS
from agent_runtime.llm.interface import ModelSlot
from agent_runtime.quotas import CpuSlots, FairQueue, TenantRateLimiter
from agent_runtime.server.admission import Drain
from agent_runtime.server.idempotency import IdempotencyStore
from agent_runtime.session import SessionRegistry
from agent_runtime.telemetry.metrics import Metering
from agent_runtime.telemetry.observer import Observer
from agent_runtime.workspace.registry import WorkspaceRegistry

MAX_APPLIES = 1024
"""Edits that are worked on at once, a thread each; of those the model takes no more than its queue holds (429)."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one service.

    `threads` are those in which requests are worked on; `tenants`, `queue` and `cpu_slots` say who may have how much of
    it, `rule_seconds` how long rules may work on an edit, `drain` whether it is ending. Spans go to `traces`.
    """

    applier: Applier
    model: ModelSlot
    workspaces: WorkspaceRegistry = field(default_factory=WorkspaceRegistry)
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(MAX_APPLIES))
    idempotency: IdempotencyStore = field(default_factory=IdempotencyStore)
    sessions: SessionRegistry = field(default_factory=SessionRegistry)
    metering: Metering = field(default_factory=Metering)
    tenants: TenantRateLimiter = field(default_factory=TenantRateLimiter)
    queue: FairQueue = field(default_factory=FairQueue)
    cpu_slots: CpuSlots = field(default_factory=CpuSlots)
    drain: Drain = field(default_factory=Drain)
    traces: TracerProvider | None = None
    rule_seconds: float = RULE_SECONDS

    @property
    def observer(self) -> Observer:
        """Receives the outcome of every request that merged an edit or asked the model."""
        return self.metering
