"""Turns token ids into output bytes and finds where the output ends."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Collects one sequence's bytes; a stop string may span tokens, so what could begin one is held back.

    Example: with stop b"</x>", the bytes b"a</" release b"a"; b"b" behind them releases b"</b".
    """

    def __init__(self, token_bytes: Sequence[bytes], stop_ids: frozenset[int], stop: tuple[bytes, ...]) -> None:
        self._token_bytes = token_bytes
        self._stop_ids = stop_ids
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._released = 0
        self.text = bytearray()
        self.stopped = False

    def push(self, token_id: int) -> bool:
        """Take the next token; True when it ends the output."""
        assert not self.stopped
        if token_id in self._stop_ids:
            self.stopped = True
            return True
        searched = max(0, len(self.text) - self._longest + 1)
        self.text += self._token_bytes[token_id]
        found = [at for stop in self._stop if (at := self.text.find(stop, searched)) >= 0]
        if found:
            del self.text[min(found) :]
            self.stopped = True
        return self.stopped

    def release(self, *, finished: bool) -> bytes:
        """Bytes that are output for certain and were not released before."""
        held = 0 if finished or self.stopped else self._held_back()
        end = len(self.text) - held
        text = bytes(self.text[self._released : end])
        self._released = end
        return text

    def _held_back(self) -> int:
        """Length of the longest tail that begins a stop string."""
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            tail = bytes(self.text[-length:])
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0
