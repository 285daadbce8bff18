"""The measuring side of the wire: a contestant in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.jobs import Answer, Job

SECONDS_TO_LEAVE = 20
LINES_SHOWN = 30


class ContestantFailed(Exception):
    """The process ended, or never became ready; the message has its last words."""


class Contestant:
    """A process that says what it can do when it is ready, and then does what it is asked, one thing at a time.

    `abilities`: `arrivals`, requests may join while others run; `prefix`, the KV of an earlier prompt is reused.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        # Open as long as the process.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            hello = self._read()
        except ContestantFailed:
            self.close()
            raise
        self.version: str = hello["version"]
        self.abilities = frozenset(hello["abilities"])

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, operation: str, argument: Any = None) -> Any:
        """Have it do something; raises ContestantFailed."""
        assert self._process.stdin is not None
        with contextlib.suppress(
            BrokenPipeError
        ):  # then there is nothing to read, and that is told with its last words
            self._process.stdin.write(json.dumps({"operation": operation, "argument": argument}) + "\n")
            self._process.stdin.flush()
        return self._read()

    def run(self, job: Job) -> list[Answer]:
        """Have it run a job."""
        return [Answer.from_json(answer) for answer in self.ask("run", job.to_json())]

    def close(self) -> None:
        """End the process; again does nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().rstrip()
        lines = said.splitlines()
        trace = said[said.rfind("Traceback") :].splitlines() if "Traceback" in said else []
        words = "\n".join(trace[:LINES_SHOWN] or lines[-LINES_SHOWN:])
        raise ContestantFailed(f"{self.name} ended with status {self._process.returncode}:\n{words}")
