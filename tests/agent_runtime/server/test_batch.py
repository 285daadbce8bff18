"""`POST /apply/batch`, requests that come again with their Idempotency-Key, and the edits that a body stands for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import BadRequest, Busy, HunkError, KeyReused, ModelFailed, ModelUnavailable, Stale
from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.request_context import CancelToken, ProgressListener, RequestContext
from agent_runtime.server.responses import OVERHEAD_BYTES, EncodedAnswer, IdempotencyStore
from agent_runtime.server.routes import apply as apply_batch
from agent_runtime.server.routes.apply import MAX_CONCURRENT_REQUESTS, MAX_REQUESTS, apply_body
from agent_runtime.server.schemas import ApplyBody, FileBody
from agent_runtime.workspace.workspace import Workspace, write_if_merged
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


KEYED: dict[str, Any] = {"original": FILE, "edit": BLOCK, "mode": "model"}


def post_with_key(keyed_url: str, body: dict[str, Any], key: str) -> httpx.Response:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}  # the body as `asking` writes it
    return httpx.post(f"{keyed_url}/apply", content=json.dumps(body), headers=headers, timeout=30)


@pytest.fixture(scope="module")
def one_url() -> Iterator[str]:
    with serving(None) as keyed_url:
        yield keyed_url


@pytest.fixture
def merger() -> ScriptedMerger:
    return ScriptedMerger(MERGED)


@pytest.fixture
def keyed_url(merger: ScriptedMerger) -> Iterator[str]:
    with serving(merger) as keyed_url:
        yield keyed_url


def test_the_same_request_has_the_same_answer_and_is_worked_on_once(keyed_url: str, merger: ScriptedMerger) -> None:
    first, again = post_with_key(keyed_url, KEYED, "one"), post_with_key(keyed_url, KEYED, "one")
    assert first.content == again.content, "timings and all"
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    quoted = post_with_key(keyed_url, KEYED, '"one"')
    assert quoted.content == first.content, "the draft wants quotes, many clients leave them out"
    assert len(merger.seen) == 1
    assert post_with_key(keyed_url, KEYED, '"one"').content == first.content, (
        "the draft wants quotes, many clients leave them out"
    )
    assert post_with_key(keyed_url, KEYED, "two").content != first.content
    assert len(merger.seen) == 2


def test_another_request_with_the_same_key_is_refused(keyed_url: str, merger: ScriptedMerger) -> None:
    post_with_key(keyed_url, KEYED, "one")
    other = post_with_key(keyed_url, KEYED | {"instruction": "another"}, "one")
    assert (other.status_code, other.json()["type"]) == (422, "urn:hunk:problem:idempotency-key-reused")
    assert other.json()["field"] == "Idempotency-Key"
    assert len(merger.seen) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, '"', '""', "é".encode("latin-1"), 'a"b'])
def test_what_cannot_be_a_key_is_said(one_url: str, key: str) -> None:
    response = httpx.post(f"{one_url}/apply", json=KEYED, headers={"Idempotency-Key": key})
    assert (response.status_code, response.json().get("field")) == (400, "Idempotency-Key")


def test_who_comes_while_the_first_is_worked_on_waits_for_its_answer() -> None:
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    with serving(merger) as keyed_url, ThreadPoolExecutor() as clients:
        waiting = [clients.submit(post_with_key, keyed_url, KEYED, "one") for _ in range(5)]
        while not merger.seen:
            pass
        other = post_with_key(keyed_url, KEYED | {"seed": 1}, "one")
        assert other.status_code == 422, "also while the first is running"
        assert merger.hold is not None
        merger.hold.set()
        answers = [each.result() for each in waiting]
    assert len({answer.content for answer in answers}) == 1
    assert sorted("idempotent-replayed" in answer.headers for answer in answers) == [False] + [True] * 4
    assert len(merger.seen) == 1


def test_one_that_waits_takes_over_where_the_client_of_the_first_leaves() -> None:
    class Second(ScriptedMerger):
        """Holds until it is stopped the first time, and never again."""

        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            self.hold = None if self.seen else threading.Event()
            return super().merge(task, context, progress)

    merger = Second(MERGED)
    with serving(merger) as keyed_url, ThreadPoolExecutor() as clients:
        with asking(keyed_url, KEYED, **{"Idempotency-Key": "one"}) as first:
            while not merger.seen:
                pass
            waiting = clients.submit(post_with_key, keyed_url, KEYED, "one")
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            first.close()
        answer = waiting.result(30)
    assert (answer.status_code, answer.json()["merged"]) == (200, MERGED)
    assert "idempotent-replayed" not in answer.headers
    assert len(merger.seen) == 2


@pytest.mark.parametrize("fault", [Busy("full"), ModelFailed("broke down")])
def test_a_failure_that_passes_is_not_kept(fault: HunkError) -> None:
    class Failing(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            made = super().merge(task, context, progress)
            if len(self.seen) == 1:
                raise fault
            return made

    with serving(Failing(MERGED)) as keyed_url:
        assert post_with_key(keyed_url, KEYED, "one").status_code == fault.http_status
        assert post_with_key(keyed_url, KEYED, "one").json()["merged"] == MERGED
        assert post_with_key(keyed_url, KEYED, "one").headers["idempotent-replayed"] == "true"


def test_a_refusal_is_an_answer_and_kept(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("c = 1\n")
    with serving(None, tmp_path) as keyed_url:
        body = {"path": "a.py", "edit": BLOCK, "mode": "deterministic"}
        first = post_with_key(keyed_url, body, "one")
        (tmp_path / "a.py").write_text(FILE)
        again = post_with_key(keyed_url, body, "one")
    assert (first.status_code, again.status_code) == (422, 422)
    assert again.headers["content-type"] == "application/problem+json"
    assert first.content == again.content


def test_what_was_written_is_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FILE)
    with serving(None, tmp_path) as keyed_url:
        body = {"path": "a.py", "edit": BLOCK, "write": True}
        first = post_with_key(keyed_url, body, "one")
        assert (tmp_path / "a.py").read_text() == MERGED
        (tmp_path / "a.py").write_text(FILE)
        assert post_with_key(keyed_url, body, "one").content == first.content
    assert (tmp_path / "a.py").read_text() == FILE


def once(
    answers: IdempotencyStore, key: str, answer: EncodedAnswer, tenant: str = "local", request: bytes = b""
) -> EncodedAnswer:
    async def work() -> EncodedAnswer:
        return answer

    got = asyncio.run(answers.run_once(tenant, key, request, work))
    answers.check_integrity()
    return got


OLD, NEW = EncodedAnswer(200, b"old"), EncodedAnswer(200, b"new")


def test_a_key_is_one_tenants() -> None:
    answers = IdempotencyStore()
    other = "other"
    assert once(answers, "one", OLD).content == b"old"
    assert once(answers, "one", NEW, other).content == b"new"
    assert once(answers, "one", OLD, other).content == b"new"
    assert once(answers, "one", NEW).content == b"old"


def test_a_key_is_one_tenants_while_the_request_is_worked_on_too() -> None:
    answers = IdempotencyStore()

    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> EncodedAnswer:
            begun.set()
            await go_on.wait()
            return OLD

        async def quick() -> EncodedAnswer:
            return NEW

        first = asyncio.create_task(answers.run_once("local", "one", b"", slow))
        await begun.wait()
        other = await asyncio.wait_for(answers.run_once("other", "one", b"other", quick), 30)
        go_on.set()
        assert (other.content, (await first).content) == (b"new", b"old")

    asyncio.run(run())


def test_an_answer_is_kept_for_a_while() -> None:
    now = 0.0
    answers = IdempotencyStore(seconds=10, clock=lambda: now)
    once(answers, "one", OLD)
    now = 9.9
    assert once(answers, "one", NEW).content == b"old"
    with pytest.raises(KeyReused):
        once(answers, "one", NEW, request=b"other")
    now = 10.1
    assert once(answers, "one", NEW, request=b"other").content == b"new"


def test_what_is_kept_is_bounded_and_one_tenant_pushes_out_no_other() -> None:
    answers = IdempotencyStore(max_bytes=10 * OVERHEAD_BYTES + 10 * 3)
    once(answers, "one", OLD, "other")
    for number in range(11):
        once(answers, f"key-{number}", OLD)
    assert once(answers, "key-10", NEW).content == b"old"
    assert once(answers, "key-0", NEW).content == b"new"
    assert once(answers, "one", NEW, "other").content == b"old"
    large = EncodedAnswer(200, b"x" * 11 * OVERHEAD_BYTES)
    once(answers, "large", large)
    assert once(answers, "large", NEW).content == b"new"
    assert once(answers, "key-10", NEW).content == b"old", "it pushed out the others, and was not kept itself"


def test_work_that_raises_leaves_nothing_behind() -> None:
    answers = IdempotencyStore()

    async def broken() -> EncodedAnswer:
        raise BadRequest("of no use")

    with pytest.raises(BadRequest):
        asyncio.run(answers.run_once("local", "one", b"", broken))
    answers.check_integrity()
    assert once(answers, "one", NEW, request=b"other").content == b"new"


DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 3\n b = 2\n"
HASH = sha256(FILE.encode()).hexdigest()
OTHER = FILE + "c = 3\n"

BODIES = [
    ApplyBody(path="a.py", edit=BLOCK, expected_sha256=HASH, write=True),
    ApplyBody(files=[FileBody(path="a.py", edit=BLOCK, expected_sha256=HASH)], write=True),
    ApplyBody(files=[FileBody(path="a.py", expected_sha256=HASH)], edit=DIFF, write=True),
]


class Changing(Workspace):
    """Another program writes the file just behind the first time that it is read."""

    def read(self, path: str) -> bytes:
        data = super().read(path)
        (self.root / path).write_text(OTHER)
        return data


def no_model() -> NoReturn:
    raise ModelUnavailable("there is none")


@pytest.mark.parametrize("body", BODIES)
def test_a_file_that_changes_behind_its_hash_is_neither_merged_nor_written(tmp_path: Path, body: ApplyBody) -> None:
    (tmp_path / "a.py").write_text(FILE)
    workspace = Changing(tmp_path)
    result = apply_body(Applier(no_model), workspace, body, RequestContext())
    assert (result.file.sha256_before, result.file.merged) == (HASH, "a = 3\nb = 2\n")
    with pytest.raises(Stale):
        write_if_merged(workspace, result, CancelToken())
    assert (tmp_path / "a.py").read_text() == OTHER
