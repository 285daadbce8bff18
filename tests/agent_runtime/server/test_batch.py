"""`POST /apply/batch`: a line for each request as it finishes, each with a result or a problem of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.server.routes import apply as apply_batch
from agent_runtime.server.routes.apply import MAX_CONCURRENT_REQUESTS, MAX_REQUESTS
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import asking, post, serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
MERGED = "a = 3\nb = 2\n"
ASKED: dict[str, Any] = {"original": FILE, "edit": BLOCK}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("root")
    (root / "a.py").write_text(FILE)
    with serving(ScriptedMerger(MERGED), root) as url:
        yield url


def batch(url: str, requests: list[Any]) -> list[dict[str, Any]]:
    response = httpx.post(f"{url}/apply/batch", json={"requests": requests}, timeout=30)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in response.text.splitlines()]


def test_every_request_has_the_answer_that_it_would_have_alone(url: str) -> None:
    requests: list[Any] = [
        ASKED | {"id": "merged"},
        ASKED | {"id": 7, "mode": "model"},
        ASKED | {"edit": BLOCK.replace("a = 1", "zzz"), "mode": "deterministic", "id": "refused"},
        {"path": "none.py", "edit": BLOCK},
        ASKED | {"temperature": "hot", "id": None},
        ASKED | {"orginal": 1},
        {"files": [{"path": "a.py", "edit": BLOCK}, ASKED]},
    ]
    lines = sorted(batch(url, requests), key=lambda line: line["index"])
    assert [line["index"] for line in lines] == list(range(len(requests)))
    assert [line["id"] for line in lines] == ["merged", 7, "refused", None, None, None, None]
    for request, line in zip(requests, lines, strict=True):
        alone = post(url, {name: value for name, value in request.items() if name != "id"})
        assert line["status"] == alone.status_code
        assert line.keys() == {"id", "index", "status", "result" if alone.is_success else "problem"}
        answer = line.get("result", line.get("problem"))
        assert answer | {"timings": {}} == alone.json() | {"timings": {}}


@pytest.mark.parametrize("request_", [7, None, [], "x", {}, {"id": {}}, {"id": "\ud800", "edit": "\ud800"}])
def test_what_is_no_request_has_a_problem_and_the_others_go_on(url: str, request_: Any) -> None:
    content = json.dumps({"requests": [request_, ASKED]})
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{url}/apply/batch", content=content, headers=headers, timeout=30)
    lines = {line["index"]: line for line in map(json.loads, response.text.splitlines())}
    assert (lines[0]["status"], lines[0]["problem"]["type"]) == (400, "urn:hunk:problem:malformed")
    assert lines[1]["result"]["merged"] == MERGED


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"requests": ASKED}, 400),
        ({"requests": [ASKED] * (MAX_REQUESTS + 1)}, 400),
        ({"requests": [], "mode": "auto"}, 422),
        ([ASKED], 400),
    ],
)
def test_what_is_no_batch_is_an_ordinary_problem(url: str, body: Any, status: int) -> None:
    response = httpx.post(f"{url}/apply/batch", json=body, timeout=30)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


def test_no_requests_have_no_lines(url: str) -> None:
    assert batch(url, []) == []


def test_as_many_as_there_may_be(url: str) -> None:
    assert {line["status"] for line in batch(url, [ASKED] * MAX_REQUESTS)} == {200}


def test_a_stream_within_is_refused_and_a_key_for_all_too(url: str) -> None:
    (line,) = batch(url, [ASKED | {"stream": True}])
    assert (line["status"], line["problem"]["field"]) == (422, "stream")
    response = httpx.post(f"{url}/apply/batch", json={"requests": []}, headers={"Idempotency-Key": "one"})
    assert (response.status_code, response.json()["field"]) == (422, "Idempotency-Key")


def test_a_request_with_a_key_is_worked_on_once() -> None:
    merger = ScriptedMerger(MERGED)
    request = ASKED | {"mode": "model", "idempotency_key": "one"}
    with serving(merger) as url:
        lines = batch(url, [request | {"id": number} for number in range(3)])
        (reused,) = batch(url, [request | {"seed": 1}])
    assert len(merger.seen) == 1
    assert sorted(line["id"] for line in lines) == [0, 1, 2]
    assert len({json.dumps(line["result"]) for line in lines}) == 1
    assert reused["problem"]["type"] == "urn:hunk:problem:idempotency-key-reused"


def test_written_files_are_written(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(FILE)
    with serving(None, tmp_path) as url:
        batch(url, [{"path": f"{name}.py", "edit": BLOCK, "write": True} for name in "ab"])
    assert [(tmp_path / f"{name}.py").read_text() for name in "ab"] == [MERGED, MERGED]


def test_what_is_quick_does_not_wait_for_what_is_slow() -> None:
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    assert merger.hold is not None
    body = {"requests": [ASKED | {"mode": "model"}, ASKED]}
    with serving(merger) as url, httpx.stream("POST", f"{url}/apply/batch", json=body, timeout=30) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines))["index"] == 1
        merger.hold.set()
        assert json.loads(next(lines))["index"] == 0


def test_a_bug_ends_one_request_and_not_the_others() -> None:
    class Buggy(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            raise KeyError("of ours")

    with serving(Buggy()) as url:
        lines = {line["index"]: line for line in batch(url, [ASKED | {"mode": "model"}, ASKED])}
    assert (lines[0]["status"], lines[0]["problem"]["type"]) == (500, "urn:hunk:problem:internal")
    assert lines[1]["status"] == 200


def test_a_client_that_leaves_ends_all() -> None:
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    with serving(merger) as url:
        with asking(url, {"requests": [ASKED | {"mode": "model"}] * (MAX_CONCURRENT_REQUESTS + 50)}, to="/apply/batch"):
            while len(merger.seen) < MAX_CONCURRENT_REQUESTS:
                time.sleep(0.01)
        assert merger.cancelled.wait(30)
        while httpx.get(f"{url}/metrics").text.count("hunk_http_requests_in_flight 1.0") != 1:
            time.sleep(0.01)  # only the one that asks
    assert len(merger.seen) == MAX_CONCURRENT_REQUESTS, "more has begun for nobody"


def test_a_client_that_does_not_read_holds_up_what_comes_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_batch, "MAX_CONCURRENT_REQUESTS", 2)
    merger = ScriptedMerger("x" * 1_000_000 + "\n")  # some of which the connection's buffers hold
    requests = [ASKED | {"mode": "model", "policy": "lenient"}] * 40
    with serving(merger) as url, asking(url, {"requests": requests}, to="/apply/batch") as connection:
        before = -1
        while before != len(merger.seen):
            before = len(merger.seen)
            time.sleep(0.3)
        assert before < 20
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received = received[-10:] + connection.recv(1 << 20)
    assert len(merger.seen) == 40, "they come once it reads"
