"""SIGTERM in real processes: running requests finish, new ones are refused; and the files of deploy/."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from agent_runtime.config import Settings
from agent_runtime.config.settings import SETTINGS
from agent_runtime.server.uvicorn_server import ANSWER_SECONDS, notify_systemd

ROOT = Path(__file__).resolve().parents[3]
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
BY_MODEL = {"original": "a = 1\nb = 2\n", "edit": BLOCK, "mode": "model"}


@dataclass
class Child:
    """The service, and what its edits by the model were answered."""

    url: str
    process: subprocess.Popen[str]
    go: Path
    answers: list[httpx.Response | httpx.TransportError] = field(default_factory=list)

    def ask_the_model(self, **more: object) -> threading.Thread:
        """Send an edit that waits for `go`, and return once it is in work."""

        def ask() -> None:
            try:
                self.answers.append(httpx.post(f"{self.url}/apply", json=BY_MODEL | more, timeout=30))
            except httpx.TransportError as error:
                self.answers.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        self.wait_for("hunk_http_requests_in_flight 2.0")  # it and the question
        return thread

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + 20
        while line not in httpx.get(f"{self.url}/metrics").text:
            assert time.monotonic() < deadline, line

    def wait_until_ending(self) -> None:
        deadline = time.monotonic() + 20
        while httpx.get(f"{self.url}/readyz").status_code != 503:
            assert time.monotonic() < deadline

    def end(self) -> tuple[int, list[dict[str, object]]]:
        """Its exit code, and its log."""
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, [json.loads(line) for line in said.splitlines()]


@contextmanager
def child(tmp_path: Path, drain_s: float, *more: str) -> Iterator[Child]:
    go = tmp_path / "go"
    command = [sys.executable, "-m", "tests.agent_runtime.operations.draining_child", go, str(drain_s), *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield Child(url, process, go)
        finally:
            process.kill()


def test_what_runs_is_finished_what_comes_is_refused_and_it_ends_with_0(tmp_path: Path) -> None:
    with child(tmp_path, drain_s=20) as service:
        asked = [service.ask_the_model()]
        with httpx.Client() as kept:  # a connection that was there before
            assert kept.get(f"{service.url}/readyz").status_code == 200
            service.process.send_signal(signal.SIGTERM)
            service.wait_until_ending()
            refusals = [kept.post(f"{service.url}/apply", json=BY_MODEL), httpx.post(f"{service.url}/apply", json={})]
        for refused in refusals:
            assert (refused.status_code, refused.json()["type"]) == (503, "urn:hunk:problem:ending")
            assert int(refused.headers["Retry-After"]) >= 1
        assert httpx.get(f"{service.url}/healthz").status_code == 200, "it lives, and must not be started anew"
        assert not service.answers
        service.go.touch()
        for thread in asked:
            thread.join()
        code, log = service.end()
    (answer,) = service.answers
    assert isinstance(answer, httpx.Response)
    assert (answer.status_code, answer.json()["merged"]) == (200, "a = 3\nb = 2\n")
    assert code == 0
    assert [line["requests_in_work"] for line in log if line["message"] == "ending"] == [1]


@pytest.mark.parametrize("stream", [False, True])
def test_what_takes_too_long_is_told_so_and_it_ends_with_0_all_the_same(tmp_path: Path, stream: bool) -> None:
    with child(tmp_path, drain_s=0.3) as service:
        asked = service.ask_the_model(stream=stream)
        service.process.send_signal(signal.SIGTERM)
        asked.join()
        code, log = service.end()
    (answer,) = service.answers
    assert isinstance(answer, httpx.Response), "the answer ends in order, a stream with its last event"
    assert "urn:hunk:problem:cancelled" in answer.text
    assert answer.status_code == (200 if stream else 499)
    assert code == 0
    assert "requests are cut off" in [line["message"] for line in log]


@pytest.mark.parametrize("stream", [False, True])
def test_rules_that_take_too_long_are_told_to_end_and_their_client_where_to_go(tmp_path: Path, stream: bool) -> None:
    with child(tmp_path, drain_s=0.3) as service:
        asked = service.ask_the_model(path="endless.py", mode="deterministic", stream=stream)
        service.process.send_signal(signal.SIGTERM)
        asked.join()
        code, log = service.end()
    (answer,) = service.answers
    assert isinstance(answer, httpx.Response)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:hunk:problem:ending")
    assert code == 0
    assert "ended while work was going on" not in [line["message"] for line in log]


def test_a_body_that_does_not_come_is_told_where_to_go(tmp_path: Path) -> None:
    with child(tmp_path, drain_s=0.3) as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"POST /apply HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\n{")
            service.wait_for("hunk_http_requests_in_flight 2.0")
            service.process.send_signal(signal.SIGTERM)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        code, log = service.end()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"urn:hunk:problem:ending" in answer
    assert code == 0
    assert "ended while work was going on" not in [line["message"] for line in log]


def test_it_ends_though_the_model_cannot_be_closed(tmp_path: Path) -> None:
    """asyncio waits for its threads: without a keeper of the time this process never ends."""
    with child(tmp_path, 0.3, "stuck") as service:
        asked = service.ask_the_model()
        service.process.send_signal(signal.SIGTERM)
        code, log = service.end()
        asked.join()
    assert code == 0
    assert [line["requests_in_work"] for line in log if line["message"] == "ended while work was going on"] == [1]


def test_a_service_whose_model_breaks_down_is_not_ready_and_ends_with_an_error(tmp_path: Path) -> None:
    with child(tmp_path, 60, "breaking") as service:
        assert httpx.get(f"{service.url}/readyz").status_code == 200
        service.go.touch()
        code, log = service.end()
    assert code == 1
    assert "ending" in [line["message"] for line in log]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with child(tmp_path, drain_s=60) as service:
        asked = service.ask_the_model()
        service.process.send_signal(signal.SIGTERM)
        service.wait_until_ending()
        service.process.send_signal(signal.SIGTERM)
        code = service.end()[0]
        asked.join()
    assert code == 128 + signal.SIGTERM
    assert isinstance(service.answers[0], httpx.TransportError)


def test_it_answers_and_ends_though_nobody_reads_its_log(tmp_path: Path) -> None:
    with child(tmp_path, drain_s=20) as service, httpx.Client() as client:
        for _ in range(500):  # a pipe holds 64 KiB, a line has 200 bytes and more
            assert client.get(f"{service.url}/no/such/path").status_code == 404
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(timeout=30) == 0
        assert service.process.stderr is not None
        assert service.process.stderr.read().count("\n") < 500, "all lines fitted into the pipe: this shows nothing"


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
