"""The service on a real socket, called by a real client: answers, faults, and what happens when the client leaves."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn, get_args

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from agent_runtime.apply.pipeline import Applier
from agent_runtime.client import Client
from agent_runtime.errors import CorruptModel, EditRefused, HunkError, NoConnection, Stale
from agent_runtime.files import MAX_FILE_BYTES
from agent_runtime.llm.interface import ModelTask, NoModel
from agent_runtime.request_context import CancelToken, ProgressListener, RequestContext
from agent_runtime.server.app import MAX_BODY_BYTES
from agent_runtime.server.service import Service, cancel_after_disconnect
from agent_runtime.types import ApplyRequest, ReuseName
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import asking, post, serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
MERGED = "a = 3\nb = 2\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("root")
    (root / "a.py").write_text(FILE)
    (root / "binary").write_bytes(b"\0\1")
    with serving(ScriptedMerger(MERGED), root) as url:
        yield url


def test_an_edit_of_a_given_text_is_merged_and_nothing_is_needed_but_the_text(url: str) -> None:
    answer = post(url, {"original": FILE, "edit": BLOCK}).json()
    assert (answer["status"], answer["merged"], answer["method"]) == ("merged", MERGED, "deterministic")
    assert answer["sha256"] == sha256(MERGED.encode()).hexdigest()


def test_an_edit_of_a_file_below_the_root_leaves_the_file_alone(url: str) -> None:
    assert post(url, {"path": "a.py", "edit": BLOCK}).json()["merged"] == MERGED
    assert post(url, {"path": "a.py", "edit": BLOCK}).json()["sha256_before"] == sha256(FILE.encode()).hexdigest()


def test_the_model_is_asked_where_the_request_says_so(url: str) -> None:
    answer = post(url, {"original": FILE, "edit": BLOCK, "mode": "model", "model": "scripted"}).json()
    assert (answer["status"], answer["method"], answer["usage"]["forwards"]) == ("merged", "model", 2)


@pytest.mark.parametrize(
    ("body", "status", "kind", "field"),
    [
        ({"original": FILE}, 400, "malformed", "edit"),
        ({"edit": BLOCK}, 400, "malformed", "path"),
        ({"original": 1, "edit": BLOCK}, 400, "malformed", "original"),
        ({"original": FILE, "edit": BLOCK, "mode": "magic"}, 400, "malformed", "mode"),
        ({"original": FILE, "edit": BLOCK, "max_tokens": 0}, 400, "malformed", "max_tokens"),
        ({"original": FILE, "edit": BLOCK, "temperature": 99}, 400, "malformed", "temperature"),
        ({"original": FILE, "edit": BLOCK, "expected_sha256": "abc"}, 400, "malformed", "expected_sha256"),
        ({"files": "a.py", "edit": BLOCK}, 400, "malformed", "files"),
        ({"files": [], "mode": "auto"}, 400, "malformed", "files"),
        ({"files": [{"path": "a.py"}]}, 400, "malformed", "files"),
        ({"files": [{"path": "a.py", "edit": BLOCK}], "edit": BLOCK}, 400, "malformed", "edit"),
        ({"files": [{"path": "a.py", "edit": BLOCK}] * 2}, 400, "malformed", "files"),
        ({"files": [{"path": "a.py", "edit": BLOCK}], "path": "a.py"}, 400, "malformed", "path"),
        ({"files": [{"path": "a.py", "edit": BLOCK, "mode": "auto"}]}, 422, "unsupported", "files"),
        ({"original": "é", "encoding": "latin-2", "edit": BLOCK}, 400, "malformed", "encoding"),
        ({"original": "€", "encoding": "latin-1", "edit": BLOCK}, 400, "malformed", "original"),
        ({"original": FILE, "edit": BLOCK, "prediction": 1}, 400, "malformed", "prediction"),
        ({"original": FILE, "edit": BLOCK, "prediction": {"type": "text"}}, 400, "malformed", "prediction"),
        ({"files": [], "edit": BLOCK, "prediction": "x"}, 400, "malformed", "prediction"),
        ({"edit": BLOCK, "prediction": "x"}, 400, "malformed", "prediction"),
        (
            {"files": [{"path": "a.py", "original": FILE, "prediction": "x"}], "edit": BLOCK},
            400,
            "malformed",
            "prediction",
        ),
        ({"original": FILE, "edit": BLOCK, "scope": "function"}, 400, "malformed", "scope"),
        ({"original": FILE, "edit": BLOCK, "stream": "yes"}, 400, "malformed", "stream"),
        ({"original": FILE, "edit": BLOCK, "write": True}, 400, "malformed", "write"),
        ({"files": [{"original": FILE, "edit": BLOCK}], "write": True}, 400, "malformed", "write"),
        ({"edit": BLOCK, "expected_sha256": "0" * 64}, 400, "malformed", "expected_sha256"),
        ({"files": [{}], "edit": BLOCK}, 400, "malformed", "path"),
        ({"path": "a.py", "edit": BLOCK, "workspace": "none"}, 404, "no-such-workspace", None),
        ({"original": FILE, "edit": BLOCK, "seed": 1 << 64}, 400, "malformed", "seed"),
        ({"original": FILE, "edit": BLOCK, "reuse": "balanced"}, 422, "unsupported", "reuse"),
        ({"original": FILE, "edit": BLOCK, "reuse": "some"}, 400, "malformed", "reuse"),
        ({"original": FILE, "edit": BLOCK, "salt": "x"}, 422, "unsupported", "salt"),
        ({"original": FILE, "edit": BLOCK, "decide": "toss"}, 400, "malformed", "decide"),
        ({"original": FILE, "edit": BLOCK, "policy": "lax"}, 400, "malformed", "policy"),
        ({"original": FILE, "edit": BLOCK, "format": "sed"}, 400, "malformed", "format"),
        ({"original": FILE, "edit": BLOCK, "model": "gpt"}, 422, "unsupported", "model"),
        ({"original": FILE, "edit": BLOCK, "orginal": ""}, 422, "unsupported", "orginal"),
        ({"path": "../etc/passwd", "edit": BLOCK}, 403, "outside-root", None),
        ({"path": "none.py", "edit": BLOCK}, 404, "not-found", None),
        ({"path": "binary", "edit": BLOCK}, 422, "bad-file", None),
        ({"original": "x" * (MAX_FILE_BYTES + 1), "edit": BLOCK}, 413, "too-large", None),
        ({"original": FILE, "edit": ""}, 422, "edit-refused", None),
    ],
)
def test_bad_requests_are_problems_that_name_the_field(
    url: str, body: dict[str, Any], status: int, kind: str, field: str | None
) -> None:
    response = post(url, body)
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, problem["status"]) == (status, status)
    assert problem["type"] == f"urn:hunk:problem:{kind}"
    assert problem.get("field") == field
    assert problem["detail"]


@pytest.mark.parametrize("field", ["edit", "original", "path", "instruction"])
def test_a_lone_surrogate_is_not_text(url: str, field: str) -> None:
    body = {"original": FILE, "edit": BLOCK, "path": "a.py"} | {field: "a\ud800b"}
    response = httpx.post(f"{url}/apply", content=json.dumps(body), headers={"content-type": "application/json"})
    assert (response.status_code, response.json().get("field")) == (400, field)


def test_a_bug_of_ours_is_a_problem_too() -> None:
    class Buggy(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> NoReturn:
            raise KeyError("of ours")

    with serving(Buggy()) as url:
        response = post(url, {"original": FILE, "edit": BLOCK, "mode": "model"})
    assert (response.status_code, response.json()["type"]) == (500, "urn:hunk:problem:internal")


def test_values_that_say_what_happens_anyway_are_taken(url: str) -> None:
    body = {"original": FILE, "edit": BLOCK, "scope": "file", "reuse": "exact", "stream": False, "policy": "strict"}
    assert post(url, body).status_code == 200


PREDICTIONS = [
    MERGED,
    {"type": "content", "content": MERGED},
    {"type": "content", "content": [{"type": "text", "text": "a = 3\n"}, {"type": "text", "text": "b = 2\n"}]},
]


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("nested", [False, True])
def test_a_prediction_is_taken_as_text_and_in_openais_form(prediction: Any, nested: bool) -> None:
    file = {"original": FILE, "edit": BLOCK, "prediction": prediction}
    merger = ScriptedMerger(MERGED)
    with serving(merger) as url:
        assert post(url, {"files": [file], "mode": "model"} if nested else file | {"mode": "model"}).status_code == 200
    assert [request.prediction for request in merger.seen] == [MERGED]


def test_scope_and_decide_reach_the_model() -> None:
    merger = ScriptedMerger(MERGED)
    with serving(merger) as url, Client(url) as client:
        client.apply(ApplyRequest(FILE.encode(), BLOCK, prediction=MERGED, mode="model", scope="file", decide="score"))
    (request,) = merger.seen
    assert (request.scope, request.decide, request.prediction) == ("file", "score", MERGED)


def test_the_mode_of_reuse_reaches_the_model_of_every_file_and_no_salt_but_ours(tmp_path: Path) -> None:
    merger = ScriptedMerger(MERGED)
    (tmp_path / "a.py").write_text(FILE)
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 3\n b = 2\n"
    ways: list[dict[str, Any]] = [
        {"original": FILE, "edit": BLOCK},
        {"path": "a.py", "edit": BLOCK},
        {"files": [{"path": "a.py", "edit": BLOCK}]},
        {"edit": patch},
        {"edit": patch, "files": [{"path": "a.py", "original": FILE}]},
    ]
    with serving(merger, tmp_path) as url:
        for way in ways:
            assert post(url, way | {"mode": "model", "reuse": "turbo"}).json()["status"] == "merged"
        assert post(url, ways[0] | {"mode": "model", "reuse": None}).status_code == 200
        with Client(url) as client:
            client.apply(ApplyRequest(FILE.encode(), BLOCK, mode="model", reuse="fast", salt="another tenant's"))
    assert [(asked.reuse, asked.salt) for asked in merger.seen] == [("turbo", "")] * 5 + [(None, ""), ("fast", "")]


@pytest.mark.parametrize("asks_to_write", [{"decide": "generate"}, {"mode": "model"}])
def test_where_a_snippet_has_readings_the_model_chooses_one_unless_it_is_asked_to_write(
    asks_to_write: dict[str, str],
) -> None:
    lines = "    a = 1\n    b = 2\n    c = 3\n"
    original = f"def f():\n{lines}\n\ndef g():\n{lines}"
    body = {"original": original, "path": "f.py", "edit": lines.replace("2", "3")}
    with serving(ScriptedMerger("written", choice=1)) as url:
        answer = post(url, body).json()
        written = post(url, {**body, **asks_to_write}).json()
    assert (answer["certainty"], answer["candidates"]) == ("scored", 2)
    assert [(reading["why"], reading["score"]) for reading in answer["readings"]] == [("second", 0.7), ("first", 0.3)]
    assert (written["certainty"], written["readings"]) == ("model", [])


def test_a_model_that_is_asked_for_may_choose_a_place_of_an_edit_that_has_two() -> None:
    body = {"original": FILE + FILE, "edit": BLOCK}
    with serving(ScriptedMerger("written", choice=1)) as url:
        refused = post(url, body)
        chosen = post(url, {**body, "mode": "model", "decide": "score"}).json()
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (422, "ambiguous")
    assert (chosen["merged"], chosen["certainty"], chosen["candidates"]) == (FILE + MERGED, "scored", 2)


@pytest.mark.parametrize("content", [b"{", b"[]", b"", b"\xff", b'{"edit": "x"} {}'])
def test_a_body_that_is_not_a_json_object_is_malformed(url: str, content: bytes) -> None:
    response = httpx.post(f"{url}/apply", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["type"].endswith(":malformed")


def test_a_body_over_the_limit_is_refused_before_it_is_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        announced = f"POST /apply HTTP/1.1\r\nHost: {host}\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
        connection.sendall(announced.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_refused_edit_carries_the_editors_reasons(url: str) -> None:
    block = BLOCK.replace("a = 1", "a = 7")
    problem = post(url, {"original": FILE, "edit": block, "mode": "deterministic"}).json()
    assert problem["type"].endswith(":edit-refused")
    assert problem["reasons"][0]["code"] == "not_found"
    assert problem["reasons"][0]["suggestion"]


def test_candidates_of_a_refused_edit_are_small_diffs(url: str) -> None:
    twice = {"original": FILE + FILE, "edit": BLOCK, "mode": "deterministic"}
    (reason,) = post(url, twice).json()["reasons"]
    assert (reason["code"], reason["num_candidates"]) == ("ambiguous", 2)
    assert [candidate.keys() for candidate in reason["candidates"]] == [{"score", "confidence", "why", "diff"}] * 2
    assert reason["candidates"][1]["diff"].startswith("@@ -2,3 +2,3 @@\n b = 2\n-a = 1\n+a = 3\n")


def test_files_with_edits_of_their_own_are_merged_together(url: str) -> None:
    files = [{"path": "a.py", "edit": BLOCK}, {"original": "é = 1\n" + FILE, "encoding": "cp1252", "edit": BLOCK}]
    answer = post(url, {"files": files}).json()
    assert [file["merged"] for file in answer["files"]] == [MERGED, "é = 1\n" + MERGED]
    assert answer["files"][1]["sha256_before"] == sha256(("é = 1\n" + FILE).encode("cp1252")).hexdigest()
    assert answer["status"] == "merged"
    assert "merged" not in answer


def test_one_of_several_files_that_is_refused_refuses_all_and_is_named(url: str) -> None:
    files = [{"path": "a.py", "edit": BLOCK}, {"original": "x\n", "path": "b.py", "edit": BLOCK}]
    problem = post(url, {"files": files, "mode": "deterministic"}).json()
    assert problem["status"] == 422
    assert [reason["path"] for reason in problem["reasons"]] == ["b.py"]


PATCH = "*** Begin Patch\n*** Update File: a.py\n-a = 1\n+a = 3\n*** Add File: new.py\n+x = 1\n*** End Patch\n"


def test_an_edit_that_names_its_files_is_applied_below_the_root_and_nothing_is_written(url: str) -> None:
    answer = post(url, {"edit": PATCH}).json()
    assert [(file["path"], file["action"]) for file in answer["files"]] == [("a.py", "update"), ("new.py", "create")]
    assert answer["files"][0]["merged"] == MERGED
    assert post(url, {"path": "a.py", "edit": BLOCK}).json()["sha256_before"] == sha256(FILE.encode()).hexdigest()
    assert post(url, {"path": "new.py", "edit": BLOCK}).status_code == 404


def test_an_edit_that_names_its_files_may_have_its_texts_sent_along(url: str) -> None:
    other = "c = 0\n" + FILE
    answer = post(url, {"edit": PATCH, "files": [{"path": "a.py", "original": other}]}).json()
    assert answer["files"][0]["merged"] == "c = 0\n" + MERGED
    missing = post(url, {"edit": PATCH, "files": []}).json()
    assert [(reason["path"], reason["code"]) for reason in missing["reasons"]] == [("a.py", "file_missing")]


def test_hashes_are_held_to_beside_an_edit_that_names_its_files(url: str) -> None:
    believed = {"path": "a.py", "expected_sha256": "0" * 64}
    assert post(url, {"edit": PATCH, "files": [believed]}).status_code == 409
    believed["expected_sha256"] = sha256(FILE.encode()).hexdigest()
    assert post(url, {"edit": PATCH, "files": [believed]}).json()["files"][0]["merged"] == MERGED


@pytest.mark.parametrize("path", ["../a.py", "/etc/passwd"])
def test_an_edit_cannot_name_a_file_out_of_the_root(url: str, path: str) -> None:
    problem = post(url, {"edit": PATCH.replace("a.py", path)}).json()
    assert problem["reasons"][0]["code"] == "malformed"


@pytest.mark.parametrize("more", [{"mode": "model"}, {"edit": "# ... existing code ...\nc = 3\n"}])
def test_a_model_that_is_not_there_yet_says_why_it_is_asked_for(more: dict[str, str]) -> None:
    with serving(None) as url:
        response = post(url, {"original": FILE, "edit": BLOCK.replace("a = 1", "aa = 1"), **more})
    assert response.status_code == 503
    assert response.json()["reasons"]


def test_a_stale_hash_is_a_conflict_with_the_current_one(url: str) -> None:
    response = post(url, {"path": "a.py", "edit": BLOCK, "expected_sha256": "0" * 64})
    assert response.status_code == 409
    assert response.json()["current_sha256"] == sha256(FILE.encode()).hexdigest()


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": "127.0.0.1.evil.example"},
    ],
)
def test_foreign_hosts_and_origins_are_refused(url: str, headers: dict[str, str]) -> None:
    response = httpx.get(f"{url}/healthz", headers=headers)
    assert response.status_code == 403
    assert "--allow-host" in response.json()["detail"]


def test_the_services_own_names_are_let_in(url: str) -> None:
    own = {"host": "localhost:1", "origin": "http://localhost:1", "sec-fetch-site": "same-origin"}
    for headers in ({"host": "localhost:1"}, own, {"host": "[::1]:80"}):
        assert httpx.get(f"{url}/healthz", headers=headers).status_code == 200


def test_without_a_root_only_texts_are_taken() -> None:
    with serving(ScriptedMerger()) as url:
        assert post(url, {"path": "a.py", "edit": BLOCK}).status_code == 403
        assert post(url, {"original": FILE, "edit": BLOCK}).status_code == 200


def test_before_the_model_is_loaded_only_edits_that_need_it_wait() -> None:
    with serving(None) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200
        ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "5")
        assert post(url, {"original": FILE, "edit": BLOCK}).status_code == 200
        assert post(url, {"original": FILE, "edit": BLOCK, "mode": "model"}).status_code == 503


def test_a_model_that_cannot_be_loaded_is_said_by_readyz() -> None:
    with serving(None, fault=CorruptModel("its file is damaged")) as url:
        ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, ready.json()["detail"]) == (503, "its file is damaged")


def test_a_bug_while_loading_is_said_by_readyz_too() -> None:
    with serving(None, fault=MemoryError("out of memory")) as url:
        assert "MemoryError: out of memory" in httpx.get(f"{url}/readyz").json()["detail"]


def test_healthz_answers_while_the_model_merges_and_a_client_that_leaves_stops_the_work() -> None:
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    with serving(merger) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{url}/apply",
                json={"original": FILE, "edit": BLOCK, "mode": "model"},
                timeout=httpx.Timeout(5, read=0.5),
            )
        assert httpx.get(f"{url}/healthz", timeout=5).json() == {"status": "ok"}
        assert merger.cancelled.wait(10), "the work went on for nobody"


def test_any_number_of_edits_that_wait_for_the_model_hold_up_none_that_a_rule_merges() -> None:
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    with serving(merger) as url, ExitStack() as clients:
        for _ in range(60):  # the framework's own pool has 40 threads
            clients.enter_context(asking(url, {"original": FILE, "edit": BLOCK, "mode": "model"}))
        deadline = time.monotonic() + 30
        while len(merger.seen) < 60:
            assert time.monotonic() < deadline, "some wait for a thread"
            time.sleep(0.01)
        assert post(url, {"original": FILE, "edit": BLOCK}).json()["merged"] == MERGED


def test_the_client_gives_results_and_raises_what_the_service_refused(url: str) -> None:
    with Client(url) as client:
        assert client.is_ready()
        result = client.apply(ApplyRequest(FILE.encode(), BLOCK, path="a.py"))
        assert result.file.merged == MERGED
        with pytest.raises(EditRefused) as refused:
            client.apply(ApplyRequest(FILE.encode(), BLOCK.replace("a = 1", "zzz"), mode="deterministic"))
        assert refused.value.reasons[0].code == "not_found"


def test_the_client_says_where_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(NoConnection, match="hunk serve"):
        client.apply(ApplyRequest(FILE.encode(), BLOCK))


def test_an_answer_that_is_not_hunks_is_named() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(502, text="<html>bad gateway</html>"))
    with Client("http://proxy", transport=transport) as client, pytest.raises(HunkError, match="is it Hunk"):
        client.apply(ApplyRequest(FILE.encode(), BLOCK))


def test_a_problem_of_the_service_is_the_same_error_at_the_client() -> None:
    problem = {"type": "urn:hunk:problem:stale", "detail": "changed", "status": 409, "current_sha256": "1" * 64}
    transport = httpx.MockTransport(lambda _: httpx.Response(409, content=json.dumps(problem)))
    with Client("http://service", transport=transport) as client, pytest.raises(Stale) as stale:
        client.apply(ApplyRequest(FILE.encode(), BLOCK))
    assert stale.value.current_sha256 == "1" * 64


def test_the_api_describes_itself_with_an_example_that_works(url: str) -> None:
    schema = httpx.get(f"{url}/openapi.json").json()["components"]["schemas"]["ApplyBody"]
    assert post(url, schema["examples"][0]).json()["status"] == "merged"
    assert set(next(one["enum"] for one in schema["properties"]["reuse"]["anyOf"] if "enum" in one)) == {
        *get_args(ReuseName)
    }


def test_what_runs_when_the_client_leaves_is_stopped() -> None:
    stopped: list[str] = []
    cancel = CancelToken()
    cancel.add_callback(lambda: stopped.append("first"))
    cancel.add_callback(lambda: stopped.append("second"))  # of several files
    assert stopped == []
    cancel.cancel()
    assert stopped == ["first", "second"], "they may have been asked at once"


def test_what_begins_after_the_client_has_left_is_stopped_at_once() -> None:
    stopped: list[str] = []
    cancel = CancelToken()
    cancel.cancel()
    cancel.add_callback(lambda: stopped.append("only"))
    assert stopped == ["only"]


def test_it_waits_for_the_connection_to_close() -> None:
    messages: Iterator[Message] = iter([{"type": "http.request"}, {"type": "http.disconnect"}])
    stopped: list[str] = []

    async def receive() -> Message:
        assert not stopped
        return next(messages)

    context = RequestContext()
    context.cancel.add_callback(lambda: stopped.append("only"))
    asyncio.run(cancel_after_disconnect(Request({"type": "http"}, receive), context))
    assert stopped == ["only"]


def test_where_there_is_no_model_an_undecided_edit_is_refused_for_good(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    a()\n    b()\n")
    snippet = "def g():\n    # ... existing code ...\n    c()\n    # ...\n"

    def without_model(service: Service) -> Service:
        return replace(service, applier=Applier(NoModel().get), model=NoModel())

    with serving(None, tmp_path, change=without_model) as url:
        refused = post(url, {"path": "a.py", "edit": snippet})
        chat = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hello"}]})
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:hunk:problem:edit-refused")
    assert "rules only" in refused.json()["detail"]
    assert refused.json()["reasons"][0]["code"] == "ambiguous"
    assert chat.status_code == 503
    assert "Retry-After" not in {**refused.headers, **chat.headers}
