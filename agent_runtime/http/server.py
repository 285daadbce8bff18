"""uvicorn as `hunk serve` runs it: told to end, it finishes what runs and refuses what comes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NoReturn

import uvicorn

from agent_runtime.http.draining import Drain
from agent_runtime.telemetry.systemd import tell_systemd

LOG = logging.getLogger("hunk.service")

INTERRUPT_SECONDS = 5.0
"""How long requests may go on after Ctrl-C, at most: somebody is waiting at the keyboard."""

ANSWER_SECONDS = 10
"""How long answers may take once the model's work is ended; one pass of the model has to end first."""

OVERDUE_SECONDS = 5.0
"""Past all that, the process is ended by a thread of its own: nothing that it still waits for has an end in sight."""


class DrainingServer(uvicorn.Server):
    """Ends in three steps: refuse new requests, wait for those in work, end the work on what is left.

    The socket stays open for the first two, so that a balancer sees 503 at /readyz and clients are told to go
    elsewhere, not cut off. A second signal ends the process at once, and so does a thread that keeps the time, where
    the model cannot be closed: asyncio would wait for that for ever.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        drain_s: float,
        end_work: Callable[[], None],
        last_words: Callable[[], object] = lambda: None,
    ) -> None:
        """`end_work` ends what the model does, `last_words` writes what the log still holds."""
        super().__init__(config)
        self._last_words = last_words
        self._drain = drain
        self._drain_s = drain_s
        self._end_work = end_work
        self._ending: asyncio.Task[None] | None = None
        self.signal: int | None = None

    def _begin_to_end(self, drain_s: float) -> None:
        """Refuse new requests from now on, and end when the others have ended; on the event loop's thread."""
        if self._ending is None:
            self._drain.begin()
            tell_systemd("STOPPING=1", os.environ)
            LOG.info("ending", extra={"fields": {"requests_in_work": self._drain.num_in_work}})
            self._ending = asyncio.get_running_loop().create_task(self._end(drain_s))

    async def _end(self, drain_s: float) -> None:
        if not await self._drain.wait(drain_s):
            LOG.warning("requests are cut off", extra={"fields": {"requests_in_work": self._drain.num_in_work}})
            self._drain.cut_off()
            await asyncio.get_running_loop().run_in_executor(None, self._end_work)
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn does it, but a signal that ended the service in good order does not kill it afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._told_to_end, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _told_to_end(self, number: int) -> None:
        if self.signal is not None:
            leave(128 + number)
        self.signal = number
        drain_s = min(INTERRUPT_SECONDS, self._drain_s) if number == signal.SIGINT else self._drain_s
        self._begin_to_end(drain_s)
        answer_s = self.config.timeout_graceful_shutdown or 0
        keeper = threading.Timer(drain_s + answer_s + OVERDUE_SECONDS, self._end_overdue)
        keeper.daemon = True
        keeper.start()

    def _end_overdue(self) -> None:
        LOG.warning("ended while work was going on", extra={"fields": {"requests_in_work": self._drain.num_in_work}})
        self._last_words()
        leave(self.exit_code)

    @property
    def exit_code(self) -> int:
        """Of the process once it has ended: as after Ctrl-C, or in good order."""
        return 128 + signal.SIGINT if self.signal == signal.SIGINT else 0


def leave(code: int) -> NoReturn:
    """End at once: a thread that is inside torch (loading, merging) aborts the process at an orderly shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
