"""Files that say which services of this user are running, so that a command can ask one instead of loading a model.

<runtime folder of the user>/hunk/serve-PID.json    mode 0600 in a folder of mode 0700; exists while the service runs

A file names the process and when that started. Only while such a process is there is its port the service's: any user
may listen on a port that is free.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from agent_runtime.files import replace_file


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service of this user. started: when the process began, as the system says it. token: None if it has none."""

    url: str
    pid: int
    started: str
    model: str
    roots: tuple[str, ...]
    token: str | None = None

    def covers(self, path: Path) -> bool:
        """Return whether a path is in one of the service's folders."""
        return any(path.resolve().is_relative_to(root) for root in self.roots)


def get_folder() -> Path:
    """Return the folder of the files: below XDG_RUNTIME_DIR, or /run/user/ID, else in the user's cache folder."""
    given = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if not given.is_absolute() and hasattr(os, "getuid"):
        given = Path(f"/run/user/{os.getuid()}")
    if given.is_absolute() and given.is_dir():
        return given / "hunk"
    return platformdirs.user_cache_path("hunk", appauthor=False) / "run"


@contextmanager
def announce(url: str, model: str, roots: Sequence[Path], token: str | None = None) -> Iterator[None]:
    """Keep the file of this process while the block runs.

    Where it cannot be written, or nobody could check it, the service runs without one.
    """
    pid = os.getpid()
    started, folder = read_start(pid), get_folder()
    if not started or not _make_private(folder):
        yield
        return
    service = RunningService(url, pid, started, model, tuple(str(root.resolve()) for root in roots), token)
    path = folder / f"serve-{pid}.json"
    with suppress(OSError):
        replace_file(path, json.dumps(asdict(service)).encode(), sync=False)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def find_service(path: Path, model: str | None = None) -> RunningService | None:
    """Return a running service of this user whose folders cover `path`, with that model if one is named."""
    for service in list_services():
        if service.covers(path) and service.model != "none" and model in (None, service.model):
            return service
    return None


def list_services() -> list[RunningService]:
    """Return the running services of this user; the files of those that were killed are removed."""
    folder, found = get_folder(), []
    if not folder.is_dir() or not _is_private(folder.lstat(), 0o077):
        return []
    for path in sorted(folder.glob("serve-*.json")):
        service = _read(path)
        if service is not None and read_start(service.pid) == service.started:
            found.append(service)
        elif service is not None:
            with suppress(OSError):
                path.unlink()
    return found


def read_start(pid: int) -> str:
    """Return when a process began, in the system's own notation; "" if there is no such process, or nothing tells."""
    if Path("/proc/self/stat").exists():
        with suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=5, check=False
        )
        return done.stdout.strip()
    return ""


def _read(path: Path) -> RunningService | None:
    """Read a file; None if it is not ours alone, or damaged."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or not _is_private(path.lstat(), 0o077):
            return None
        fields = json.loads(path.read_bytes())
        return RunningService(**fields | {"roots": tuple(fields["roots"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _make_private(folder: Path) -> bool:
    """Make the folder; return whether it is this user's alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and _is_private(state, 0o077)


def _is_private(state: os.stat_result, others: int) -> bool:
    """Return whether a file or folder is this user's, and `others` have no rights; Windows has no such bits."""
    if not hasattr(os, "getuid"):
        return True
    return state.st_uid == os.getuid() and not state.st_mode & others
