"""The main function of a process that runs rules on large texts."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from traceback import extract_tb
from typing import Any, NoReturn

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.result import Outcome
from agent_runtime.apply.rule_process import limit_rule_time
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ModelTask
from agent_runtime.request_context import CancelToken, ProgressListener, RequestContext

NICENESS = 10
"""The service merges small edits itself; they go before large ones if the processor is busy."""


class UndecidedError(Exception):
    """The service could not ask the model; it has the reason."""


def main(descriptor: int) -> None:
    """Answer the calls from the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends this process
    os.nice(NICENESS)
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        while True:
            pipe.send(_answer(pipe, *pipe.recv()))
    except (EOFError, ConnectionError):
        return


def _answer(pipe: Connection[Any, Any], method: str, arguments: tuple[Any, ...], seconds: float) -> tuple[Any, ...]:
    try:
        with limit_rule_time(CancelToken(), seconds):
            read = (_PipeReader(pipe),) if method == "apply_patch" else ()
            return "done", getattr(_PipeApplier(pipe), method)(*arguments, *read, progress=_PipeProgress(pipe))
    except UndecidedError:
        return ("undecided",)
    except HunkError as fault:  # most cannot be pickled: their constructors take more than a message
        return "failed", type(fault), fault.args, vars(fault)
    except Exception as bug:  # noqa: BLE001 -- reported to the service without its message, which may quote the file
        return (
            "bug",
            type(bug).__name__,
            [f"{at.filename}:{at.lineno} {at.name}" for at in extract_tb(bug.__traceback__)],
        )


def _refuse_model() -> NoReturn:
    raise AssertionError("the service has the model")


class _PipeApplier(Applier):
    """Has the service ask the model."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        super().__init__(_refuse_model)
        self._pipe = pipe

    def _ask_model(
        self, tasks: Sequence[ModelTask], context: RequestContext, progress: ProgressListener
    ) -> list[Outcome]:
        if not tasks:
            return []
        self._pipe.send(("decide", list(tasks)))
        outcomes: list[Outcome] | None = self._pipe.recv()
        if outcomes is None:
            raise UndecidedError
        return outcomes


class _PipeReader:
    """Has the service read a file."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def __call__(self, path: str) -> bytes | None:
        self._pipe.send(("read", path))
        data: bytes | None = self._pipe.recv()
        return data


class _PipeProgress(ProgressListener):
    """Reports phases to the service."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def on_phase(self, phase: str, path: str = "") -> None:
        self._pipe.send(("phase", phase, path))
