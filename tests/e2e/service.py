"""A `hunk serve` in a process of its own, as users start it; its model may follow a script."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from tests.scripted_model import Line, write_script

ROOT = Path(__file__).resolve().parents[2]
HUNK = Path(sys.executable).with_name("hunk")


@dataclass
class Running:
    """A running service; `said` are the lines that it has written so far."""

    url: str
    root: Path
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def wait_until_ready(self, timeout_s: float = 180.0) -> None:
        """Until the model is loaded."""
        deadline = time.monotonic() + timeout_s
        while httpx.get(f"{self.url}/readyz", timeout=30).status_code != 200:
            assert time.monotonic() < deadline, "\n".join(["the model was not loaded", *self.said])
            time.sleep(0.1)


@contextmanager
def running(root: Path, *arguments: str | Path, environ: Mapping[str, str] | None = None) -> Iterator[Running]:
    """The service on a free port of loopback; killed at the end, whatever state it is in."""
    with _running([HUNK], root, arguments, environ) as served:
        yield served


@contextmanager
def scripted(root: Path, script: Path, *lines: Line, arguments: Sequence[str | Path] = ()) -> Iterator[Running]:
    """The same with smollm2-135m's tokenizer and a model that writes these lines, kept in `script`; it is loaded."""
    hunk = [sys.executable, "-m", "tests.scripted_model", write_script(script, *lines)]
    with _running(hunk, root, ("--model", "smollm2-135m", *arguments), None) as served:
        served.wait_until_ready()
        yield served


@contextmanager
def _running(
    hunk: Sequence[str | Path], root: Path, arguments: Sequence[str | Path], environ: Mapping[str, str] | None
) -> Iterator[Running]:
    command = [*hunk, "serve", "--port", "0", "--root", root, *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environ, cwd=ROOT
    ) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            found = re.search(r"http://[\d.]+:\d+", first)
            assert found, first + process.stderr.read()
            served = Running(found[0], root, process, [first])
            threading.Thread(target=_keep, args=(process.stderr, served.said), daemon=True).start()
            yield served
        finally:
            process.kill()


def _keep(lines: IO[str], said: list[str]) -> None:
    said.extend(line.rstrip("\n") for line in lines)
