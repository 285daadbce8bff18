"""Places on the processor that note who takes one and gives it back, for tests of what is done in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent_runtime.quotas import Places


class NotedPlaces(Places):
    """Notes in `events`: `taken`, and `given back` where that is before the end of the work, once a place."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    @asynccontextmanager
    async def place(self, holder: str) -> AsyncIterator[Callable[[], None]]:
        """A place, noted."""
        async with super().place(holder) as give_back:
            self._events.append("taken")
            is_noted = False

            def noted() -> None:
                nonlocal is_noted
                if not is_noted:
                    is_noted = True
                    self._events.append("given back")
                give_back()

            yield noted
