"""What lies in deploy/ fits the service: systemd takes the unit and hears from it, the container starts it."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runtime.config import Settings
from agent_runtime.config.settings import SETTINGS
from agent_runtime.server.uvicorn_server import ANSWER_SECONDS, notify_systemd

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
UNIT = (DEPLOY / "hunk.service").read_text(encoding="utf-8")
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "hunk.service"
    here = UNIT.replace("/opt/hunk/bin/hunk", sys.executable)  # it has to be there
    unit.write_text(re.sub(r"^(User|Group)=hunk$", r"\1=root", here, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_waits_longer_for_the_end_than_the_service_takes() -> None:
    allowed = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert allowed
    assert int(allowed[1]) > Settings().drain + ANSWER_SECONDS


def test_every_variable_that_deploy_sets_is_one_of_ours() -> None:
    named = set(re.findall(r"\bHUNK_[A-Z_]+\b", UNIT + CONTAINER))
    assert named
    assert named <= {setting.variable for setting in SETTINGS.values()}


def test_every_option_that_the_container_starts_with_is_there() -> None:
    command = re.search(r'^CMD \[("serve".*)\]$', CONTAINER, re.MULTILINE)
    assert command
    options = set(re.findall(r'"(--[a-z-]+)"', command[1]))
    assert options <= {setting.flag for setting in SETTINGS.values() if "serve" in setting.commands}


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_over_its_socket(tmp_path: Path, abstract: bool) -> None:
    name = f"@hunk-test-{tmp_path.name}-{id(tmp_path)}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0", 1) if abstract else name)
        systemd.settimeout(5)
        notify_systemd("READY=1", {"NOTIFY_SOCKET": name})
        assert systemd.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens(tmp_path: Path) -> None:
    notify_systemd("READY=1", {})
    notify_systemd("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
