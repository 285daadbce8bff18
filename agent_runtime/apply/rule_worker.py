"""The main function of a process that runs rules for large texts."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from traceback import extract_tb
from typing import Any, NoReturn

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.result import Outcome
from agent_runtime.apply.rule_process import rule_time
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ModelTask
from agent_runtime.progress import Timings, Watcher

NICENESS = 10
"""Small edits, which the service does itself, go before large ones where the processor has too much to do."""


class UndecidedError(Exception):
    """The service could not have the model decide; it knows why."""


def main(descriptor: int) -> None:
    """Answer what comes over the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which has its own way to end
    os.nice(NICENESS)
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        while True:
            pipe.send(_answer(pipe, *pipe.recv()))
    except (EOFError, ConnectionError):
        return


def _answer(pipe: Connection[Any, Any], name: str, arguments: tuple[Any, ...], seconds: float) -> tuple[Any, ...]:
    try:
        with rule_time(Watcher(), seconds):
            read = (_Reader(pipe),) if name == "apply_patch" else ()
            return "done", getattr(_Rules(pipe), name)(*arguments, *read, watcher=_Teller(pipe))
    except UndecidedError:
        return ("undecided",)
    except HunkError as fault:  # most cannot be pickled by themselves: what makes them wants more than a message
        return "failed", type(fault), fault.args, vars(fault)
    except Exception as bug:  # noqa: BLE001 -- told to the service, without its message, which may quote the file
        return (
            "bug",
            type(bug).__name__,
            [f"{at.filename}:{at.lineno} {at.name}" for at in extract_tb(bug.__traceback__)],
        )


def _no_model() -> NoReturn:
    raise AssertionError("the service has the model")


class _Rules(Applier):
    """Has the service ask the model."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        super().__init__(_no_model)
        self._pipe = pipe

    def _ask_for_each(self, tasks: Sequence[tuple[ModelTask, Timings]], watcher: Watcher) -> list[Outcome]:
        if not tasks:
            return []
        self._pipe.send(("decide", [task for task, _ in tasks]))
        made: list[tuple[Outcome, Mapping[str, float]]] | None = self._pipe.recv()
        if made is None:
            raise UndecidedError
        for (_, timings), (_, by_phase) in zip(tasks, made, strict=True):
            timings.add(by_phase)
        return [outcome for outcome, _ in made]


class _Reader:
    """Has the service read."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def __call__(self, path: str) -> bytes | None:
        self._pipe.send(("read", path))
        data: bytes | None = self._pipe.recv()
        return data


class _Teller(Watcher):
    """Tells the service of phases."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def entered(self, phase: str, path: str = "") -> None:
        self._pipe.send(("entered", phase, path))
