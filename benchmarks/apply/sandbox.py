"""Runs a program that nobody has read: code that a model merged, and a case's own tests.

It gets an empty temporary folder as its working directory and HOME, an environment of four names, `python -I`, limits
on processor time, memory, processes, open files and the size of files, and a time limit after which its process group
is killed. Where the machine permits it (`unshare`), it has no network, and its own process numbers, so that nothing
that it starts outlives it. Where this process is root, it becomes nobody, who may read and not write: root knows no
limit on processes. `Sandbox.restrictions` says which of these hold here. It may read what its user may read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Literal

Outcome = Literal["passed", "failed", "timeout", "unavailable"]

_NOBODY = "65534"
_UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child")
# Nobody may still read: the interpreter may lie in a folder of root's.
_AS_NOBODY = (
    *("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
)
# The program is a child of this: signals do not end the first process of its own process numbers.
_LAUNCH = """
import json, os, resource, signal, sys
for name, value in json.loads(sys.argv[1]).items():
    limit = getattr(resource, name)
    most = resource.getrlimit(limit)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))
program = os.fork()
if program == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
sys.exit(124 if -status in (signal.SIGXCPU, signal.SIGKILL) else status if status >= 0 else 1)
"""
_TAIL = 2_000
_TIME_IS_UP = 124


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use. Memory is what is its own to write, not what it reserves: node reserves gigabytes."""

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory_bytes: int = 1 << 30
    num_processes: int = 64
    file_bytes: int = 16 << 20
    num_files: int = 128

    def by_name(self) -> dict[str, int]:
        """The limits as names of module `resource`."""
        return {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_DATA": self.memory_bytes,
            "RLIMIT_NPROC": self.num_processes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.num_files,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a program, and the end of what it printed."""

    outcome: Outcome
    output: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How programs are kept in on this machine: what a command is begun with, and what that holds back."""

    prefix: tuple[str, ...]
    restrictions: str

    def run(self, files: Mapping[str, str], command: Sequence[str], limits: Limits | None = None) -> Verdict:
        """Write the files into an empty folder and run the command there; it passes if it ends with 0.

        `python` as the command's first word is this interpreter with `-I`; another program that is not here, or that
        names no program, is `unavailable`. Raises ValueError for a file outside of the folder.
        """
        program = _program(command)
        if program is None:
            return Verdict("unavailable", f"{command[0] if command else 'no command'}: not on this machine")
        with tempfile.TemporaryDirectory(prefix="hunk-exec-", ignore_cleanup_errors=True) as folder:
            home = Path(folder) / "home"
            home.mkdir()
            _write(home, files)
            Path(folder).chmod(0o755)
            with (Path(folder) / "output").open("w+b") as output:
                return self._run(home, program, limits or Limits(), output)

    def _run(self, home: Path, program: Sequence[str], limits: Limits, output: IO[bytes]) -> Verdict:
        launch = [*self.prefix, sys.executable, "-I", "-c", _LAUNCH, json.dumps(limits.by_name()), *program]
        process = subprocess.Popen(
            launch,
            cwd=home,
            env={"HOME": str(home), "TMPDIR": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill(process)
        return Verdict(_outcome(status), _tail(output))


@cache
def sandbox() -> Sandbox:
    """Return the tightest sandbox that this machine permits."""
    is_root = os.geteuid() == 0
    ways = [
        Sandbox((*_UNSHARE, *_AS_NOBODY), "no network, own process numbers, as nobody, limits"),
        Sandbox(_AS_NOBODY, "as nobody, limits; NETWORK NOT CUT OFF"),
        Sandbox(_UNSHARE, "no network, own process numbers, limits; AS ROOT"),
    ]
    if not is_root:
        unshare = (*_UNSHARE[:1], "--map-root-user", *_UNSHARE[1:])
        ways = [Sandbox(unshare, "no network, own process numbers, limits")]
    works = (way for way in ways if way.run({}, ["python", "-c", "pass"]).outcome == "passed")
    return next(works, Sandbox((), f"limits{' AS ROOT' if is_root else ''}; NETWORK NOT CUT OFF"))


def _program(command: Sequence[str]) -> list[str] | None:
    if not command:
        return None
    if command[0] in ("python", "python3"):
        return [sys.executable, "-I", *command[1:]]
    found = shutil.which(command[0])
    return None if found is None else [found, *command[1:]]


def _write(home: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{name!r} lies outside of the folder")
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(text.encode())
    for made in [home, *home.rglob("*")]:
        # Whoever the program runs as may write here, and here alone.
        made.chmod(0o777 if made.is_dir() else 0o666)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the program's process group, which it may have left running behind itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(status: int | None) -> Outcome:
    if status is None or status == _TIME_IS_UP:
        return "timeout"
    return "failed" if status else "passed"


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL))
    return output.read().decode("utf-8", "replace")
