"""Runs rules on large texts in other processes, and limits their time.

Python runs one thread at a time, and some C calls hold the interpreter for half a second on a megabyte: small edits and
health checks would wait meanwhile. A process can also be killed when its client leaves, and its crash does not affect
the service. Small edits stay in the service: sending them to a process takes some milliseconds.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe
from threading import get_ident
from time import monotonic, thread_time
from typing import Any

from agent_runtime.apply.result import Outcome, make_refusal
from agent_runtime.errors import EditRefused, HunkError
from agent_runtime.llm.interface import ModelTask
from agent_runtime.request_context import CancelToken, ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader, Reason
from editor.execution import check_stopped, stop_when

LOG = logging.getLogger("hunk.apply")

LARGE_BYTES = 100_000
"""Minimum size of edits and files together for another process; the rules take about 50 ms for this much."""

POLL_SECONDS = 0.05
"""Interval at which the service checks whether the request is cancelled."""

MAX_SECONDS = 60.0
"""Wall-clock limit of an edit, for a process that hangs; the process limits its processor time itself."""

MAX_WAITING = 8
"""Limit of the processes that wait for a model; each takes 40 MB and its texts. Beyond it the service runs the rules
again itself."""

Call = tuple[str, tuple[Any, ...]]
"""A method of `Applier`, and its arguments."""

AskModel = Callable[[Sequence[ModelTask], RequestContext, ProgressListener], list[Outcome]]
"""Has the model decide about tasks in this process."""


class RuleProcessError(Exception):
    """A bug ended an edit in a process. The log says where; neither contains the text."""


class LargeFilesError(Exception):
    """The files of an edit are large enough for another process."""


class RuleProcesses:
    """Processes that apply edits by rules, one for each concurrent edit. They are kept for later edits."""

    def __init__(self, seconds: float, large_bytes: int = LARGE_BYTES) -> None:
        """`seconds` limits the processor time of an edit; edits of `large_bytes` and more run in a process."""
        self._seconds = seconds
        self._large_bytes = large_bytes
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._may_wait = threading.Semaphore(MAX_WAITING)

    def is_large_enough(self, requests: Sequence[ApplyRequest]) -> bool:
        """Return whether edits are large enough for a process."""
        texts = (each for one in requests for each in (one.original, one.base or b"", one.edit_text))
        return sum(map(len, texts)) >= self._large_bytes

    def make_reader(self, request: PatchRequest, read: Reader) -> BoundedReader:
        """Return a reader that raises LargeFilesError once the edit and its files are large enough for a process."""
        return BoundedReader(read, self._large_bytes - len(request.edit_text))

    def apply(
        self,
        call: Call,
        context: RequestContext,
        progress: ProgressListener,
        ask_model: AskModel,
        read: Reader | None = None,
    ) -> ApplyResult | None:
        """Return the result of a call, or None if no process is available. Raises what the call raises.

        `read` reads files, and `ask_model` asks the model, both in this process.
        """
        try:
            process = self._take_idle() or _Process()
        except OSError:  # no more processes can be started: the caller runs the rules
            return None
        try:
            answer = process.call((*call, self._seconds), context, progress, partial(self._ask_model, ask_model), read)
        except BaseException:
            process.kill()
            raise
        with self._lock:
            self._idle.append(process)
        match answer:
            case ("done", result):
                assert isinstance(result, ApplyResult)
                return result
            case ("failed", kind, arguments, attributes):
                fault: HunkError = kind.__new__(kind, *arguments)
                fault.args = arguments
                vars(fault).update(attributes)
                raise fault
            case ("undecided", None):
                return None
            case ("undecided", fault):
                raise fault
            case ("bug", name, stack):
                LOG.error("a bug ended an edit in a process", extra={"fields": {"error": name, "stack": stack}})
                raise RuleProcessError(name)
        raise AssertionError(answer)

    def _ask_model(
        self, ask_model: AskModel, tasks: Sequence[ModelTask], context: RequestContext, progress: ProgressListener
    ) -> list[Outcome] | None:
        """Ask the model; return None if too many processes already wait for it."""
        if not self._may_wait.acquire(blocking=False):
            return None
        try:
            return ask_model(tasks, context, progress)
        finally:
            self._may_wait.release()

    def _take_idle(self) -> _Process | None:
        """Return a running idle process, None if there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
            if process.is_running:
                return process
            process.kill()

    def close(self) -> None:
        """End the idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()


class BoundedReader:
    """Reads each file once, and raises LargeFilesError if the files have `max_bytes` or more together."""

    def __init__(self, read: Reader, max_bytes: int) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._files: dict[str, bytes | None] = {}

    def __call__(self, path: str) -> bytes | None:
        """Return the file; raises LargeFilesError, and what `read` raises."""
        data = self.read_any(path)
        if sum(len(each or b"") for each in self._files.values()) >= self._max_bytes:
            raise LargeFilesError
        return data

    @property
    def has_room(self) -> bool:
        """Whether the edit alone is below the limit."""
        return self._max_bytes > 0

    def read_any(self, path: str) -> bytes | None:
        """Return the file as it was first read, whatever its size."""
        if path not in self._files:
            self._files[path] = self._read(path)
        return self._files[path]


class _Process:
    """One process. It ends when the service closes its end of the pipe."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._pipe, its_end = Pipe()
        with its_end:
            code = f"from {__package__}.rule_worker import main; main({its_end.fileno()})"
            # -P: nothing is imported from the folder in which the service runs.
            command = [sys.executable, "-P", "-c", code]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[its_end.fileno()])

    def call(
        self,
        call: tuple[Any, ...],
        context: RequestContext,
        progress: ProgressListener,
        ask_model: Callable[[Sequence[ModelTask], RequestContext, ProgressListener], list[Outcome] | None],
        read: Reader | None,
    ) -> tuple[Any, ...]:
        """Return the answer to a call.

        Raises the token's error if the request is cancelled, EditRefused if the process ends or takes too long, and
        what `read` raises. The process must not be used after that.
        """
        until, undecided = monotonic() + MAX_SECONDS, None
        try:
            self._pipe.send(call)
            while True:
                if self._pipe.poll(POLL_SECONDS):
                    match self._pipe.recv():
                        case ("phase", phase, path):
                            progress.on_phase(phase, path)
                        case ("read", path):
                            assert read is not None
                            self._pipe.send(read(path))
                        case ("decide", tasks):
                            started, outcomes = monotonic(), None
                            try:
                                outcomes = ask_model(tasks, context, progress)
                            except HunkError as fault:
                                undecided = fault
                            self._pipe.send(outcomes)
                            until += monotonic() - started
                        case ("undecided",):
                            return "undecided", undecided
                        case answer:
                            return answer  # type: ignore[no-any-return]
                    continue
                context.cancel.raise_if_cancelled()
                if monotonic() > until:
                    raise _make_process_refusal(f"the rules took more than {MAX_SECONDS:g} s for it")
        except (EOFError, ConnectionError) as error:
            raise _make_process_refusal(
                "the process that worked on it has ended, for want of memory or by a fault"
            ) from error

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()


def _make_process_refusal(why: str) -> EditRefused:
    suggestion = "Send the edit in several parts, each with lines that stand only once in the file."
    return make_refusal([Reason("too_much_work", f"The edit is past a bound of work: {why}.", suggestion=suggestion)])


RULE_SECONDS = 10.0
"""Processor time for one edit. The slowest edits within the editor's own limits take some seconds."""


@contextmanager
def limit_rule_time(cancel: CancelToken, seconds: float = RULE_SECONDS) -> Iterator[None]:
    """End the editor's work in the block if the token is cancelled, or with EditRefused when its time is over.

    Only the processor time of this thread counts, not the wait for the model, nor other threads.
    """
    thread, end = get_ident(), thread_time() + seconds

    def find_fault() -> Exception | None:
        fault = cancel.fault
        if fault is None and get_ident() == thread and thread_time() > end:
            return _make_time_refusal(seconds)
        return fault

    with stop_when(find_fault):
        check_stopped()
        yield


def _make_time_refusal(seconds: float) -> EditRefused:
    reason = Reason(
        "too_much_work",
        f"The edit is past a bound of work: the rules took more than {seconds:g} s of the processor for it.",
        suggestion="Send the edit in several parts, each with lines that stand only once in the file.",
    )
    return make_refusal([reason])
