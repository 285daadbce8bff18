"""Runs rules for large texts in processes of their own, and limits their time.

Python runs one thread at a time, and some calls out of it take half a second on a megabyte: beside such an edit a small
one, or a look whether the service lives, would wait. A process also ends at once when nobody waits any more, whatever
it is at, and takes nobody with it when it breaks. Small edits stay here: to and fro takes some milliseconds.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe
from threading import get_ident
from time import monotonic, thread_time
from typing import Any

from agent_runtime.apply.result import Outcome, refusal
from agent_runtime.errors import EditRefused, HunkError
from agent_runtime.llm.interface import ModelTask
from agent_runtime.progress import Watcher
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader, Reason
from editor.execution import check_stopped, stop_when

LOG = logging.getLogger("hunk.apply")

LARGE_BYTES = 100_000
"""Of edits and files together; rules take some 50 ms for as much."""

LOOK_SECONDS = 0.05
"""How often is looked whether somebody still waits."""

MAX_SECONDS = 60.0
"""By the clock. The process keeps to its time on the processor by itself, unless it does not come to look."""

MAX_WAITING = 8
"""Processes that are kept while a model decides for them, 40 MB each and what the texts take; the service merges by
rule again what it asks the model beside them."""

Work = tuple[str, tuple[Any, ...]]
"""A method of `Applier`, and what it is called with."""

Decided = list[tuple[Outcome, Mapping[str, float]]]
"""What becomes of each task, and the milliseconds of its phases."""

Decide = Callable[[Sequence[ModelTask], Watcher], Decided]
"""Has the model decide on tasks, here."""


class AsideError(Exception):
    """A bug of ours ended an edit in a process; the log has where, and nothing has its text."""


class LargeFilesError(Exception):
    """The files of an edit are for a process of their own."""


class Aside:
    """Processes that apply edits by rule, as many as are asked at once; each is kept for the next edit."""

    def __init__(self, seconds: float, large_bytes: int = LARGE_BYTES) -> None:
        """`seconds` are those of the processor that an edit may take, `large_bytes` is where it comes here."""
        self._seconds = seconds
        self._large_bytes = large_bytes
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._may_wait = threading.Semaphore(MAX_WAITING)

    def takes(self, requests: Sequence[ApplyRequest]) -> bool:
        """Whether edits are large enough."""
        return sum(len(one.original) + len(one.edit) for one in requests) >= self._large_bytes

    def reader(self, request: PatchRequest, read: Reader) -> FirstReader:
        """Reads for an edit of files that are not known yet, and raises LargeFilesError where they are large enough."""
        return FirstReader(read, self._large_bytes - len(request.edit))

    def ask(self, work: Work, watcher: Watcher, decide: Decide, read: Reader | None = None) -> ApplyResult | None:
        """What the work comes to, None where no process can be had or kept for it; raises what the work raises.

        What it reads, `read` reads here, and what no rule decides, `decide` does.
        """
        try:
            process = self._idle_process() or _Process()
        except OSError:  # there can be no more processes: it is done here
            return None
        try:
            answer = process.ask((*work, self._seconds), watcher, partial(self._decide, decide), read)
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
                raise AsideError(name)
        raise AssertionError(answer)

    def _decide(self, decide: Decide, tasks: Sequence[ModelTask], watcher: Watcher) -> Decided | None:
        """As `decide` does; None where too many processes wait already."""
        if not self._may_wait.acquire(blocking=False):
            return None
        try:
            return decide(tasks, watcher)
        finally:
            self._may_wait.release()

    def _idle_process(self) -> _Process | None:
        """One that waits for an edit; those that have ended meanwhile are forgotten."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
            if process.is_there:
                return process
            process.kill()

    def close(self) -> None:
        """End the processes that wait for an edit."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()


class FirstReader:
    """Reads each file once, and gives up where they are `room` bytes or more."""

    def __init__(self, read: Reader, room: int) -> None:
        self._read = read
        self._room = room
        self._files: dict[str, bytes | None] = {}

    def __call__(self, path: str) -> bytes | None:
        """The file; raises LargeFilesError, and what `read` raises."""
        data = self.again(path)
        if sum(len(each or b"") for each in self._files.values()) >= self._room:
            raise LargeFilesError
        return data

    @property
    def has_room(self) -> bool:
        """Whether the edit alone is not too large already."""
        return self._room > 0

    def again(self, path: str) -> bytes | None:
        """The file as it was read at first, however large."""
        if path not in self._files:
            self._files[path] = self._read(path)
        return self._files[path]


class _Process:
    """One process; it ends when its end of the pipe is all there is."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._pipe, its_end = Pipe()
        with its_end:
            code = f"from agent_runtime.apply.rule_worker import main; main({its_end.fileno()})"
            # -P: what lies in the folder in which the service runs is not imported.
            command = [sys.executable, "-P", "-c", code]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[its_end.fileno()])

    def ask(
        self,
        work: tuple[Any, ...],
        watcher: Watcher,
        decide: Callable[[Sequence[ModelTask], Watcher], Decided | None],
        read: Reader | None,
    ) -> tuple[Any, ...]:
        """Its answer; raises what the watcher says where it is left, EditRefused where the process ends or goes on.

        Also raises what `read` raises. Behind any of these the process is in the middle of something.
        """
        until, undecided = monotonic() + MAX_SECONDS, None
        try:
            self._pipe.send(work)
            while True:
                if self._pipe.poll(LOOK_SECONDS):
                    match self._pipe.recv():
                        case ("entered", phase, path):
                            watcher.entered(phase, path)
                        case ("read", path):
                            assert read is not None
                            self._pipe.send(read(path))
                        case ("decide", tasks):
                            began, made = monotonic(), None
                            try:
                                made = decide(tasks, watcher)
                            except HunkError as fault:
                                undecided = fault
                            self._pipe.send(made)
                            until += monotonic() - began
                        case ("undecided",):
                            return "undecided", undecided
                        case answer:
                            return answer  # type: ignore[no-any-return]
                elif watcher.is_left:
                    raise watcher.ends_with
                elif monotonic() > until:
                    raise _broken_off(f"the rules took more than {MAX_SECONDS:g} s for it")
        except (EOFError, ConnectionError) as error:
            raise _broken_off("the process that worked on it has ended, for want of memory or by a fault") from error

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it, whatever it is at."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()


def _broken_off(why: str) -> EditRefused:
    suggestion = "Send the edit in several parts, each with lines that stand only once in the file."
    return refusal([Reason("too_much_work", f"The edit is past a bound of work: {why}.", suggestion=suggestion)])


RULE_SECONDS = 10.0
"""Of the processor, for one edit. The longest that the bounds of the editor let through take some seconds."""


@contextmanager
def rule_time(watcher: Watcher, seconds: float = RULE_SECONDS) -> Iterator[None]:
    """What the editor does in the block ends once the watcher is left as it says, with EditRefused past the time.

    Only the time of this thread counts, and only where it works: not the wait for the model, or for other threads.
    """
    thread, end = get_ident(), thread_time() + seconds

    def verdict() -> Exception | None:
        if watcher.is_left:
            return watcher.ends_with
        if get_ident() == thread and thread_time() > end:
            return refusal([_too_much(seconds)])
        return None

    with stop_when(verdict):
        check_stopped()
        yield


def _too_much(seconds: float) -> Reason:
    return Reason(
        "too_much_work",
        f"The edit is past a bound of work: the rules took more than {seconds:g} s of the processor for it.",
        suggestion="Send the edit in several parts, each with lines that stand only once in the file.",
    )
