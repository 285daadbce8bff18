"""What the work on a request tells a stream: it waits here, put together, until the client has taken the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from agent_runtime.generation.relay import Relay
from agent_runtime.generation.watcher import Piece, Watcher

MAX_PIECES = 256
"""Of one event; behind that, neighbours of the same origin become one piece."""


@dataclass(slots=True)
class _Phase:
    """The event `phase`."""

    phase: str
    path: str

    name = "phase"

    def data(self) -> dict[str, Any]:
        return {"phase": self.phase, **_of(self.path)}


@dataclass(slots=True)
class _Tokens:
    """The event `tokens`: what was written of one region since the last."""

    region: int
    path: str
    pieces: list[Piece] = field(default_factory=list)

    name = "tokens"

    def add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            last = self.pieces[-1] if self.pieces else None
            if last is not None and len(self.pieces) >= MAX_PIECES and last.origin == piece.origin:
                self.pieces[-1] = Piece(last.text + piece.text, piece.origin)
            else:
                self.pieces.append(piece)

    def data(self) -> dict[str, Any]:
        pieces = [{"text": piece.text, "origin": piece.origin} for piece in self.pieces]
        return {"region": self.region, "pieces": pieces, **_of(self.path)}


def _of(path: str) -> dict[str, str]:
    """Whose file it is, where several are worked on."""
    return {"path": path} if path else {}


class Events(Relay):
    """Told by the threads that work, read by the event loop that it is made in.

    What a client does not take holds no more memory than the answer itself: phases are few, and the tokens of a region
    are one event until it is taken.
    """

    wants_text = True

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher)
        self.wants_text = True
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._waiting: list[_Phase | _Tokens] = []
        self._by_region: dict[tuple[str, int], _Tokens] = {}
        self._more = asyncio.Event()
        self.asked = asyncio.Event()
        """The model has taken the work on: it is no longer refused, and takes its time."""

    def entered(self, phase: str, path: str = "") -> None:
        """An event of its own."""
        with self._lock:
            self._waiting.append(_Phase(phase, path))
            for place in [place for place in self._by_region if place[0] == path]:
                del self._by_region[place]  # what comes now of this file stands behind the phase
        self.wake()
        super().entered(phase, path)

    def began(self, stop: Callable[[], None]) -> None:
        """The model has taken the work on: its first pass may take seconds, of which phases tell meanwhile."""
        if not self.asked.is_set():
            self._call(self.asked.set)
        super().began(stop)

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Added to the event of this region, where it still waits."""
        with self._lock:
            tokens = self._by_region.get((path, region))
            if tokens is None:
                tokens = self._by_region[path, region] = _Tokens(region, path)
                self._waiting.append(tokens)
            tokens.add(pieces)
        self.wake()
        super().wrote_pieces(region, pieces, path)

    def wake(self) -> None:
        """There is something to be looked at; from any thread."""
        if not self._more.is_set():
            self._call(self._more.set)

    def take(self) -> list[_Phase | _Tokens]:
        """What has come since the last time, in its order."""
        self._more.clear()
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._by_region.clear()
        return taken

    async def wait(self, seconds: float) -> bool:
        """Until there is more, or so long; returns whether there is."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)
        return self._more.is_set()

    def _call(self, what: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody reads any more
            self._loop.call_soon_threadsafe(what)
