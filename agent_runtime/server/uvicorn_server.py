"""uvicorn as `hunk serve` runs it: connection limits, timeouts and graceful shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agent_runtime.errors import BadRequest, HunkError, TooManyConnections
from agent_runtime.serialization import problem_to_json
from agent_runtime.server.auth import get_network
from agent_runtime.server.middleware import Drain


def notify_systemd(state: str, environ: Mapping[str, str]) -> None:
    """Send a state such as `READY=1` to systemd (sd_notify(3)), if it started the service with `Type=notify`."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # a name in Linux' abstract namespace
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.sendall(state.encode())


LOG = logging.getLogger("hunk.service")

INTERRUPT_SECONDS = 5.0
"""Maximum seconds that requests may run after Ctrl-C: a person is waiting."""

ANSWER_SECONDS = 10
"""Seconds for sending answers after the model is stopped; its current pass has to end first."""

OVERDUE_SECONDS = 5.0
"""Seconds after all these limits until a thread ends the process."""


class DrainingServer(uvicorn.Server):
    """A server that shuts down in three steps: refuse new requests, wait for the running ones, end what is left.

    The socket stays open during the first two, so that a load balancer sees 503 at /readyz, and clients get an answer
    that sends them elsewhere. A second signal ends the process at once. So does a timer thread if the model cannot be
    closed, since asyncio would wait for that for ever.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        drain_s: float,
        end_work: Callable[[], None],
        flush_log: Callable[[], object] = lambda: None,
        has_broken_down: Callable[[], bool] = lambda: False,
    ) -> None:
        """`end_work` stops the model; `flush_log` writes the log lines that still wait. The server ends once
        `has_broken_down` is true: a new process may answer where this one cannot.
        """
        super().__init__(config)
        self._flush_log = flush_log
        self._drain = drain
        self._drain_s = drain_s
        self._end_work = end_work
        self._has_broken_down = has_broken_down
        self._drain_task: asyncio.Task[None] | None = None
        self.signal: int | None = None

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn's, ten times a second: return whether to end. A server whose model broke down is drained."""
        if self._has_broken_down():
            self._start_drain(INTERRUPT_SECONDS)
        return await super().on_tick(counter)

    def _start_drain(self, drain_s: float) -> None:
        """Refuse new requests from now on, and exit when the others have ended. Called on the event loop."""
        if self._drain_task is None:
            self._drain.begin()
            notify_systemd("STOPPING=1", os.environ)
            LOG.info("ending", extra={"fields": {"requests_in_work": self._drain.num_in_work}})
            self._drain_task = asyncio.get_running_loop().create_task(self._drain_and_exit(drain_s))

    async def _drain_and_exit(self, drain_s: float) -> None:
        if not await self._drain.wait(drain_s):
            LOG.warning("requests are cut off", extra={"fields": {"requests_in_work": self._drain.num_in_work}})
            self._drain.cut_off()
            await asyncio.get_running_loop().run_in_executor(None, self._end_work)
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals as uvicorn does, without raising them again after an orderly shutdown."""
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
            exit_process(128 + number)
        self.signal = number
        drain_s = min(INTERRUPT_SECONDS, self._drain_s) if number == signal.SIGINT else self._drain_s
        self._start_drain(drain_s)
        answer_s = self.config.timeout_graceful_shutdown or 0
        keeper = threading.Timer(drain_s + answer_s + OVERDUE_SECONDS, self._exit_overdue)
        keeper.daemon = True
        keeper.start()

    def _exit_overdue(self) -> None:
        LOG.warning("ended while work was going on", extra={"fields": {"requests_in_work": self._drain.num_in_work}})
        self._flush_log()
        exit_process(self.exit_code)

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 130 after Ctrl-C, else 0."""
        return 128 + signal.SIGINT if self.signal == signal.SIGINT else 0


def exit_process(code: int) -> NoReturn:
    """End the process at once: in an orderly exit, a thread that is still inside torch would abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


STALL_SECONDS = 30.0
NUM_CHECKS = 6
"""Checks of a connection within STALL_SECONDS."""

MAX_CONNECTIONS = 1000
"""Default limit: on most systems a process may open 1,024 files."""

MAX_HEAD_BYTES = 32 << 10

SAFE_HEADERS = (
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
"""Headers of every answer: they keep other sites from loading it, sniffing its type and framing it."""


class TimeoutH11Protocol(H11Protocol):
    """uvicorn's HTTP protocol with timeouts and a limit of connections.

    uvicorn closes connections that are idle after an answer. It waits without limit for the head of a request, for the
    rest of a body that is not read, and for a client that does not read its answer. Here each connection is checked
    every few seconds, and one without progress for `STALL_SECONDS` is closed. `request_body.py` limits the time of a
    body. At the limit of connections, a connection of the network that has most of them is closed for a new one.
    """

    stall_s = STALL_SECONDS
    max_connections = MAX_CONNECTIONS

    network = ""
    """Network of the client (`get_network`)."""

    _check_task: asyncio.TimerHandle | None = None
    _cycle_seen: object = None
    _num_waiting = 0
    _num_stuck = 0
    _unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or answer 503 if there are too many."""
        super().connection_made(transport)
        self.network = get_network(self.client[0] if self.client else "")
        if len(self.connections) > self.max_connections and not self._make_room():
            self._close_with(TooManyConnections(f"the service has {self.max_connections} connections already"))
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_task is not None:
            self._check_task.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Record that the client reads again."""
        self._num_stuck = 0
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP with a problem."""
        self._close_with(BadRequest(msg))

    def _make_room(self) -> bool:
        """Return whether there is room, after closing another connection if necessary.

        That is one that waits for its client, of the network with the most connections; the new connection's network
        must have at least two fewer.
        """
        connections = [each for each in self.connections if isinstance(each, TimeoutH11Protocol)]
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

    def _schedule_check(self) -> None:
        self._check_task = self.loop.call_later(self.stall_s / NUM_CHECKS, self._check_progress)

    def _check_progress(self) -> None:
        """Count the checks without progress, and close the connection after the last."""
        is_same = self.cycle is self._cycle_seen
        self._cycle_seen = self.cycle
        self._num_waiting = self._num_waiting + 1 if is_same and not self._is_answering() else 0
        unsent_bytes = self.transport.get_write_buffer_size()
        self._num_stuck = self._num_stuck + 1 if unsent_bytes and unsent_bytes >= self._unsent_bytes else 0
        self._unsent_bytes = unsent_bytes
        if max(self._num_waiting, self._num_stuck) >= NUM_CHECKS:
            self.transport.abort()
        else:
            self._schedule_check()

    def _close_with(self, fault: HunkError) -> None:
        """Answer with a problem, unless another answer has begun, and close."""
        if not self._is_answering():
            self.transport.write(_encode_problem(fault))
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn says that there is always one
        return cycle is not None and not cycle.response_complete


def _encode_problem(fault: HunkError) -> bytes:
    body = json.dumps(problem_to_json(fault)).encode()
    retry = f"Retry-After: {fault.retry_after_s:.0f}\r\n" if fault.retry_after_s else ""
    safe = "".join(f"{name}: {value}\r\n" for name, value in SAFE_HEADERS)
    head = (
        f"HTTP/1.1 {fault.http_status} {'Bad Request' if fault.http_status == 400 else 'Service Unavailable'}\r\n"
        f"Content-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n{retry}{safe}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def make_connection_settings(max_connections: int = MAX_CONNECTIONS) -> dict[str, Any]:
    """Return uvicorn's settings of connections (`uvicorn.Config`).

    X-Forwarded-For is ignored, since any sender can set it: a sender is identified by its address or token.
    """
    return {
        "http": type("Connection", (TimeoutH11Protocol,), {"max_connections": max_connections}),
        "ws": "none",
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "server_header": False,
        "headers": list(SAFE_HEADERS),
        "proxy_headers": False,
    }
