"""`hunk serve --replicas 2`: a local Ray with two real replicas, asked over HTTP, killed and stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from agent_runtime.llm.interface import ChatMessage, ChatRequest
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.request_context import NO_PROGRESS, RequestContext
from agent_runtime.wiring import open_merger
from tests.models import RealModel

HUNK = Path(sys.executable).with_name("hunk")
FILE = "def area(r):\n    return 3.14 * r * r\n\n\ndef length(r):\n    return 6.28 * r\n"
LONG = {
    "original": FILE,
    "path": "circle.py",
    "edit": "# ... existing code ...\ndef colour():\n    return 'red'\n",
    "mode": "model",
    "min_certainty": "model",
    "draft": "none",
    "temperature": 10.0,
}
"""An edit of which the model finds no end."""


class Service:
    """A running service with two replicas, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.process = process
        self.lines = [process.stderr.readline()]
        found = re.search(r"http://[\d.]+:\d+", self.lines[0])
        assert found, self.lines[0] + process.stderr.read()
        self.reader = threading.Thread(target=lambda: self.lines.extend(process.stderr), daemon=True)  # type: ignore[arg-type]
        self.reader.start()
        self.client = httpx.Client(base_url=found[0], timeout=120)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 180
        while self.client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.2)

    def ask(self, text: str, max_tokens: int = 8) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        body = {"model": "hunk", "messages": messages, "temperature": 0, "max_tokens": max_tokens}
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def read_counter(self, name: str) -> dict[str, float]:
        """Return a metric's values by replica; that of the service itself by "" ."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [re.match(rf'{name}(?:\{{.*?replica="(\w+)".*?\}})? (\S+)$', line) for line in lines]
        return {match[1] or "": float(match[2]) for match in found if match}

    def find_replicas(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in children if "ServeReplica" in " ".join(each.cmdline())]

    def find_busy_replica(self) -> psutil.Process:
        """Wait until one replica works, and return it."""
        before = {each: sum(each.cpu_times()[:2]) for each in self.find_replicas()}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.05)
            busy = [each for each, seconds in before.items() if sum(each.cpu_times()[:2]) > seconds + 0.5]
            if busy:
                return busy[0]
        raise AssertionError("no replica works")

    def wait_for_replicas(self) -> None:
        deadline = time.monotonic() + 60
        while len(self.read_counter("hunk_engine_passes_total")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.5)


@contextmanager
def serve(root: Path, *arguments: str) -> Iterator[Service]:
    model = ["--model", "smollm2-135m", "--context", "4096", "--dtype", "float32"]
    command = [HUNK, "serve", "--port", "0", "--root", root, *model, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            service = Service(process)
            with service.client:
                yield service
        finally:
            process.terminate()
        service.reader.join(60)


@pytest.fixture(scope="module")
def service(smollm2: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("root")
    (root / "circle.py").write_text(FILE)
    with serve(root, "--replicas", "2") as service:
        service.wait_until_ready()
        yield service


class TestWithTwoReplicas:
    def test_an_answer_is_that_of_the_model_in_one_process(self, service: Service) -> None:
        merger = open_merger("smollm2-135m", ModelSettings.from_env(os.environ), LoadOptions("float32", context=4096))
        request = ChatRequest(prompt=(ChatMessage("user", "Name three colours."),), max_tokens=24)
        expected = merger.chat().answer(request, RequestContext(), NO_PROGRESS)
        merger.close()
        found = service.ask("Name three colours.", 24)
        assert found["choices"][0]["message"]["content"] == expected.text
        assert found["usage"]["prompt_tokens"] == expected.usage.prompt

    def test_text_arrives_in_pieces(self, service: Service) -> None:
        body = {"model": "hunk", "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": "Count."}]}
        with service.client.stream("POST", "/v1/chat/completions", json=body) as response:
            events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        pieces = [each["choices"][0]["delta"].get("content") for each in events if each.get("choices")]
        assert sum(map(bool, pieces)) > 3

    def test_a_prompt_goes_where_its_beginning_is_cached(self, service: Service) -> None:
        """Replicas have other ids in every run: eight stories all went to one of them once."""
        num_used = 0
        for number in range(24):
            question = f"Story {number}: " + f"the {number}th colour of the wall is blue. " * 12
            assert service.ask(question)["hunk"]["usage"]["cached"] < 60
            assert service.ask(question)["hunk"]["usage"]["cached"] > 100
            num_used = sum(value > 5 for value in service.read_counter("hunk_engine_passes_total").values())
            if number >= 7 and num_used == 2:
                break
        assert service.read_counter("hunk_replica_moves_total")[""] == 0
        assert num_used == 2, "both are used"

    def test_a_session_stays_with_its_replica(self, service: Service) -> None:
        opened = service.client.post("/sessions", json={"workspace": "default"}).json()
        url = f"/sessions/{opened['id']}"
        assert service.client.post(f"{url}/read", json={"paths": ["circle.py"]}).status_code == 200
        turns = [
            service.client.post(f"{url}/ask", json={"question": f"What is it? {n}", "max_tokens": 8}).json()
            for n in range(3)
        ]
        assert all(turn["usage"]["cached"] > 40 for turn in turns[1:]), turns
        assert service.read_counter("hunk_replica_moves_total")[""] == 0

    def test_an_error_of_the_replica_is_the_service_s_own(self, service: Service) -> None:
        body = {"model": "hunk", "messages": [{"role": "user", "content": "word " * 9000}]}
        answer = service.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, "as OpenAI answers it"
        assert "context of 4096 tokens" in answer.text

    def test_rules_need_no_replica_and_the_service_no_torch(self, service: Service) -> None:
        edit = "<<<<<<< SEARCH\n    return 6.28 * r\n=======\n    return 2 * 3.14 * r\n>>>>>>> REPLACE\n"
        answer = service.client.post("/apply", json={"original": FILE, "edit": edit, "path": "circle.py"}).json()
        assert (answer["method"], answer["certainty"]) == ("deterministic", "certain")
        assert "libtorch" not in Path(f"/proc/{service.process.pid}/maps").read_text()
        assert "libtorch" in Path(f"/proc/{service.find_replicas()[0].pid}/maps").read_text()

    def test_nothing_listens_beyond_loopback(self, service: Service) -> None:
        own = psutil.Process(service.process.pid)
        sockets = [
            connection.laddr
            for process in (own, *own.children(recursive=True))
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert len(sockets) > 5
        assert {address.ip for address in sockets} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}

    def test_a_client_that_leaves_stops_the_replica(self, service: Service) -> None:
        with pytest.raises(httpx.ReadTimeout):
            service.client.post("/apply", json=LONG, timeout=1.5)
        deadline = time.monotonic() + 20
        while _count_running(service):
            assert time.monotonic() < deadline, "it goes on"
            time.sleep(0.1)

    def test_a_request_whose_replica_is_killed_goes_to_the_other(self, service: Service) -> None:
        answers: list[httpx.Response] = []
        body = {**LONG, "max_tokens": 160}
        asking = threading.Thread(target=lambda: answers.append(service.client.post("/apply", json=body)))
        asking.start()
        service.find_busy_replica().kill()
        asking.join()
        assert answers[0].status_code == 200, answers[0].text
        assert answers[0].json()["usage"]["completion"] == 160
        assert service.read_counter("hunk_replica_retries_total")[""] == 1
        service.wait_for_replicas()

    def test_a_stream_whose_replica_is_killed_ends_with_an_error_to_try_again(self, service: Service) -> None:
        body = {"model": "hunk", "stream": True, "messages": [{"role": "user", "content": "Count to a thousand"}]}
        body |= {"temperature": 2, "max_tokens": 400}
        lines: list[str] = []
        with service.client.stream("POST", "/v1/chat/completions", json=body) as response:
            busy: psutil.Process | None = None
            for line in response.iter_lines():
                lines.append(line)
                if busy is None and len(lines) > 6:
                    busy = service.find_busy_replica()
                    busy.kill()
        errors = [json.loads(line[6:])["error"] for line in lines if line.startswith('data: {"error"')]
        assert [error["code"] for error in errors] == ["model_unavailable"]
        assert errors[0]["hunk"]["retry_after_s"] == 1.0


def _count_running(service: Service) -> int:
    replicas = service.client.get("/stats").json()["replicas"]
    return sum(each["queue"]["running"] + each["queue"]["waiting"] for each in replicas)


@pytest.mark.long
def test_a_stopped_service_finishes_its_request_and_leaves_nothing(
    smollm2: RealModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # in tmp_path the path of Ray's socket is too long
        monkeypatch.setenv("TMPDIR", folder)
        with serve(tmp_path, "--replicas", "1") as service:
            service.wait_until_ready()
            processes = psutil.Process(service.process.pid).children(recursive=True)
            assert list(Path(folder).iterdir())
            answers: list[httpx.Response] = []
            body = {**LONG, "max_tokens": 48}
            asking = threading.Thread(target=lambda: answers.append(service.client.post("/apply", json=body)))
            asking.start()
            service.find_busy_replica()
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(60) == 0
            asking.join()
            assert answers[0].json()["usage"]["completion"] == 48
            _, alive = psutil.wait_procs(processes, 20)
            assert not alive
            assert not list(Path(folder).iterdir())


@pytest.mark.long
def test_a_service_whose_ray_has_ended_ends_with_an_error(smollm2: RealModel, tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "1") as service:
        service.wait_until_ready()
        (raylet,) = [
            each for each in psutil.Process(service.process.pid).children(recursive=True) if each.name() == "raylet"
        ]
        raylet.kill()
        assert service.process.wait(120) == 4
    assert "Ray has ended on this machine" in service.lines[-1]
