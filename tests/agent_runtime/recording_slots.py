"""CPU slots that record who acquires and releases them, for tests of the work that holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent_runtime.quotas import CpuSlots


class RecordingSlots(CpuSlots):
    """Records in `events`: `acquired`, and `released` if that is before the end of the work, once a slot."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    @asynccontextmanager
    async def acquire(self, flow: str) -> AsyncIterator[Callable[[], None]]:
        """Record it."""
        async with super().acquire(flow) as release:
            self._events.append("acquired")
            is_recorded = False

            def record_release() -> None:
                nonlocal is_recorded
                if not is_recorded:
                    is_recorded = True
                    self._events.append("released")
                release()

            yield record_release
