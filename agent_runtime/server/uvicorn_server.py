"""uvicorn as `hunk serve` runs it: connection limits, timeouts and graceful shutdown.

uvicorn ends connections that are idle after an answer, and waits for ever for the head of a request, for the rest of a
body that nobody reads, and for a client that does not take its answer. Every few seconds each connection is looked at;
one that has not moved for `PATIENCE_SECONDS` is cut. The time that a body may take is `request_body.py`'s. Where all
connections are taken, whoever has the most of them makes room for the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agent_runtime.errors import BadRequest, HunkError, TooManyConnections
from agent_runtime.serialization import problem_to_json
from agent_runtime.server.admission import Drain
from agent_runtime.server.auth import network_of
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
        """Run as uvicorn does, but a signal that ended the service in good order does not kill the process
        afterwards.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
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
        """Exit code of the process: as after Ctrl-C, or in good order."""
        return 128 + signal.SIGINT if self.signal == signal.SIGINT else 0


def leave(code: int) -> NoReturn:
    """End at once: a thread that is inside torch (loading, merging) aborts the process at an orderly shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


PATIENCE_SECONDS = 30.0
NUM_LOOKS = 6
"""In that time."""

MAX_CONNECTIONS = 1000
"""Most systems let a process have 1,024 files open where nothing else is set."""

MAX_HEAD_BYTES = 32 << 10

SAFE_HEADERS = (
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
"""Headers of every answer: another site can neither load it, nor sniff its type, nor frame it."""


class PatientConnection(H11Protocol):
    """uvicorn's HTTP protocol, with timeouts."""

    patience_s = PATIENCE_SECONDS
    max_connections = MAX_CONNECTIONS

    network = ""
    """Network of the client: its address, or the /64 of an IPv6 address."""

    _look_task: asyncio.TimerHandle | None = None
    _cycle_seen: object = None
    _num_waiting = 0
    _num_stuck = 0
    _unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or answer 503 where there are too many."""
        super().connection_made(transport)
        self.network = network_of(self.client[0] if self.client else "")
        if len(self.connections) > self.max_connections and not self._finds_room():
            self._end_with(TooManyConnections(f"the service has {self.max_connections} connections already"))
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look at it no more."""
        if self._look_task is not None:
            self._look_task.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """The client has taken what was held back."""
        self._num_stuck = 0
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP with a problem."""
        self._end_with(BadRequest(msg))

    def _finds_room(self) -> bool:
        """Whether there is a place after all: that of one that waits for its client, of the network that has the most.

        None is cut off for a network that would then have as many.
        """
        connections = [each for each in self.connections if isinstance(each, PatientConnection)]
        others = [each for each in connections if each is not self and not each.transport.is_closing()]
        if len(others) < self.max_connections:
            return True
        num_of = Counter(each.network for each in others)
        idle = [each for each in others if num_of[each.network] > num_of[self.network] + 1 and each.is_waiting]
        if not idle:
            return False
        max(idle, key=lambda each: (num_of[each.network], each._num_waiting)).transport.abort()
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for its client to send a request, or the rest of one."""
        return not self._is_answering() or (self.cycle.more_body and not self.cycle.response_started)

    def _look_later(self) -> None:
        self._look_task = self.loop.call_later(self.patience_s / NUM_LOOKS, self._look)

    def _look(self) -> None:
        """Count the looks since the connection last moved."""
        is_same = self.cycle is self._cycle_seen
        self._cycle_seen = self.cycle
        self._num_waiting = self._num_waiting + 1 if is_same and not self._is_answering() else 0
        unsent_bytes = self.transport.get_write_buffer_size()
        self._num_stuck = self._num_stuck + 1 if unsent_bytes and unsent_bytes >= self._unsent_bytes else 0
        self._unsent_bytes = unsent_bytes
        if max(self._num_waiting, self._num_stuck) >= NUM_LOOKS:
            self.transport.abort()
        else:
            self._look_later()

    def _end_with(self, fault: HunkError) -> None:
        """Answer a problem, unless another answer is on its way, and close."""
        if not self._is_answering():
            self.transport.write(_raw(fault))
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn says that there is always one
        return cycle is not None and not cycle.response_complete


def _raw(fault: HunkError) -> bytes:
    body = json.dumps(problem_to_json(fault)).encode()
    retry = f"Retry-After: {fault.retry_after_s:.0f}\r\n" if fault.retry_after_s else ""
    safe = "".join(f"{name}: {value}\r\n" for name, value in SAFE_HEADERS)
    head = (
        f"HTTP/1.1 {fault.http_status} {'Bad Request' if fault.http_status == 400 else 'Service Unavailable'}\r\n"
        f"Content-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n{retry}{safe}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def connection_settings(max_connections: int = MAX_CONNECTIONS) -> dict[str, Any]:
    """What uvicorn is told about connections (`uvicorn.Config`).

    A sender is known by its address, or its token: what it says of itself in X-Forwarded-For is not looked at.
    """
    return {
        "http": type("Connection", (PatientConnection,), {"max_connections": max_connections}),
        "ws": "none",
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "server_header": False,
        "headers": list(SAFE_HEADERS),
        "proxy_headers": False,
    }
