"""Environments of their own for the clients that `make e2e` drives, so that they never decide what we run with.

    requirements/NAME.txt    exact pins -> <cache>/e2e/NAME-HASH/   a virtual environment, made once
    a folder with package.json          -> <cache>/e2e/npm-NAME-HASH/  with node_modules beside it

HASH is of what was asked for: other pins make a new one. `python -m tests.e2e.environments` makes all and names the
programs that are missing; `program` makes the one that a test needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from filelock import FileLock

from agent_runtime.models.config import ModelSettings

REQUIREMENTS = Path(__file__).parent / "requirements"
CLIENTS = Path(__file__).parent / "clients"

TOOLS = {
    "chromium": "apt-get install chromium",
    "curl": "apt-get install curl",
    "git": "apt-get install git",
    "node": "apt-get install nodejs npm",
    "npm": "apt-get install npm",
}
"""Programs that the tests drive and pip cannot bring, and what brings them on Debian."""


class NotMade(Exception):
    """An environment could not be made; the message says what pip or npm said."""


def environment(name: str) -> Path:
    """The folder of a virtual environment with what `requirements/NAME.txt` pins; raises NotMade."""
    pins = REQUIREMENTS / f"{name}.txt"
    if not pins.is_file():
        raise NotMade(f"there is no {pins}")
    folder = _place(name, [pins, None])
    with FileLock(folder.with_suffix(".lock")):
        if not _is_made(folder):
            print(f"e2e: installing {name} into {folder}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
            _run([sys.executable, "-m", "venv", folder])
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, "--requirement", pins])
            _mark_made(folder)
    return folder


def program(name: str, command: str = "python") -> Path:
    """A program of an environment, which is made if need be; the test fails with what to do where it cannot be."""
    try:
        return environment(name) / "bin" / command
    except NotMade as error:
        pytest.fail(f"{name} cannot be had: {error}", pytrace=False)


def npm_folder(source: Path) -> Path:
    """A folder with `source`'s package.json, package-lock.json and what they ask for; raises NotMade.

    Nothing is installed into the checkout: have node look here for modules (NODE_PATH), or copy what is to be built.
    An `.npmrc` beside them is npm's configuration there.
    """
    given = [source / name for name in ("package.json", "package-lock.json", ".npmrc")]
    asked = [path for path in given if path.exists()]
    folder = _place(f"npm-{source.name}", asked)
    with FileLock(folder.with_suffix(".lock")):
        if not _is_made(folder):
            print(f"e2e: installing what {source.name} needs into {folder}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for file in asked:
                shutil.copy(file, folder)
            _run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel", "error", "--prefix", folder])
            _mark_made(folder)
    return folder


def tool(name: str) -> Path:
    """A program of this machine; the test fails with what to install where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"this test needs {name}: {TOOLS[name]}", pytrace=False)
    return Path(found)


def missing_tools() -> dict[str, str]:
    """What is not on this machine, with what to type."""
    return {name: advice for name, advice in TOOLS.items() if shutil.which(name) is None}


def _place(name: str, asked: Sequence[Path | None]) -> Path:
    content = b"".join(sys.version.encode() if file is None else file.read_bytes() for file in asked)
    folder = ModelSettings.from_env(os.environ).cache_dir / "e2e" / f"{name}-{sha256(content).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _is_made(folder: Path) -> bool:
    return (folder / ".made").is_file()


def _mark_made(folder: Path) -> None:
    (folder / ".made").touch()


def _run(command: Sequence[str | Path]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    except OSError as error:
        raise NotMade(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-10:])
        raise NotMade(f"{' '.join(map(str, command))} failed:\n{said}")


def main() -> None:
    """Make all environments; end with 1 where one cannot be made or a program is missing."""
    faults = [f"{name} is missing: {advice}" for name, advice in missing_tools().items()]
    for pins in sorted(REQUIREMENTS.glob("*.txt")):
        try:
            environment(pins.stem)
        except NotMade as error:
            faults.append(str(error))
    for client in sorted(CLIENTS.iterdir()):
        try:
            npm_folder(client)
        except NotMade as error:
            faults.append(str(error))
    for fault in faults:
        print(f"e2e: {fault}", file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
