"""`hunk serve` as users start it, and what it takes of the machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

HUNK = Path(sys.executable).with_name("hunk")


@dataclass(frozen=True, slots=True)
class Running:
    """A running service."""

    port: int
    pid: int

    @property
    def resident_mb(self) -> float:
        """Its memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def num_threads(self) -> int:
        """Its threads now."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    @property
    def num_open_files(self) -> int:
        """Its open files and connections now."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def serving(
    model: str | Path,
    root: Path,
    *options: str | Path,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Running]:
    """A service with its model loaded, ended by SIGTERM; raises RuntimeError where it does not start or end well.

    It may be killed meanwhile. `options` and `environ` come on top of the usual ones.
    """
    command: list[str | Path] = [HUNK, "serve", "--port", "0", "--model", model, "--root", root, "--log-format", "json"]
    command += options
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ | environ
    ) as process:
        assert process.stderr is not None
        said: list[str] = []
        port = 0
        while not port and (line := process.stderr.readline()):
            said.append(line.rstrip())
            found = re.search(r"listening on \S+:(\d+),", line)
            port = int(found[1]) if found else 0
        if not port:
            raise RuntimeError("\n".join(["the service did not start", *said]))
        threading.Thread(target=_keep, args=(process.stderr, said), daemon=True).start()
        try:
            _wait_until_ready(port, process)
            yield Running(port, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError("the service ended with " + "\n".join([str(code), *said[-10:]]))


def _keep(lines: IO[str], said: list[str]) -> None:
    for line in lines:
        said.append(line.rstrip())
        del said[:-20]


def _wait_until_ready(port: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30):
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise RuntimeError(f"the service ended with {process.returncode} while its model was loaded")
