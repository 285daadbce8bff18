"""Requests that come again: one key and one body have one answer, and are worked on once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime.errors import BadRequest, Busy, HunkError, KeyReused, ModelFailed
from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.server.responses import BYTES_BESIDE, EncodedAnswer, IdempotencyStore
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import asking, serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
MERGED = "a = 3\nb = 2\n"
ASKED: dict[str, Any] = {"original": FILE, "edit": BLOCK, "mode": "model"}


def post(url: str, body: dict[str, Any], key: str) -> httpx.Response:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return httpx.post(f"{url}/apply", content=json.dumps(body), headers=headers, timeout=30)  # as `asking` writes it


@pytest.fixture(scope="module")
def one_url() -> Iterator[str]:
    with serving(None) as url:
        yield url


@pytest.fixture
def merger() -> ScriptedMerger:
    return ScriptedMerger(MERGED)


@pytest.fixture
def url(merger: ScriptedMerger) -> Iterator[str]:
    with serving(merger) as url:
        yield url


def test_the_same_request_has_the_same_answer_and_is_worked_on_once(url: str, merger: ScriptedMerger) -> None:
    first, again = post(url, ASKED, "one"), post(url, ASKED, "one")
    assert first.content == again.content, "timings and all"
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    assert first.headers["x-request-id"] != again.headers["x-request-id"]
    assert len(merger.seen) == 1
    assert post(url, ASKED, '"one"').content == first.content, "the draft wants quotes, many clients leave them out"
    assert post(url, ASKED, "two").content != first.content
    assert len(merger.seen) == 2


def test_another_request_with_the_same_key_is_refused(url: str, merger: ScriptedMerger) -> None:
    post(url, ASKED, "one")
    other = post(url, ASKED | {"instruction": "another"}, "one")
    assert (other.status_code, other.json()["type"]) == (422, "urn:hunk:problem:idempotency-key-reused")
    assert other.json()["field"] == "Idempotency-Key"
    assert len(merger.seen) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, '"', '""', "é".encode("latin-1"), 'a"b'])
def test_what_cannot_be_a_key_is_said(one_url: str, key: str) -> None:
    response = httpx.post(f"{one_url}/apply", json=ASKED, headers={"Idempotency-Key": key})
    assert (response.status_code, response.json().get("field")) == (400, "Idempotency-Key")


def test_who_comes_while_the_first_is_worked_on_waits_for_its_answer() -> None:
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    with serving(merger) as url, ThreadPoolExecutor() as clients:
        waiting = [clients.submit(post, url, ASKED, "one") for _ in range(5)]
        while not merger.seen:
            pass
        other = post(url, ASKED | {"seed": 1}, "one")
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
    with serving(merger) as url, ThreadPoolExecutor() as clients:
        with asking(url, ASKED, **{"Idempotency-Key": "one"}) as first:
            while not merger.seen:
                pass
            waiting = clients.submit(post, url, ASKED, "one")
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

    with serving(Failing(MERGED)) as url:
        assert post(url, ASKED, "one").status_code == fault.http_status
        assert post(url, ASKED, "one").json()["merged"] == MERGED
        assert post(url, ASKED, "one").headers["idempotent-replayed"] == "true"


def test_a_refusal_is_an_answer_and_kept(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("c = 1\n")
    with serving(None, tmp_path) as url:
        body = {"path": "a.py", "edit": BLOCK, "mode": "deterministic"}
        first = post(url, body, "one")
        (tmp_path / "a.py").write_text(FILE)
        again = post(url, body, "one")
    assert (first.status_code, again.status_code) == (422, 422)
    assert again.headers["content-type"] == "application/problem+json"
    assert first.content == again.content


def test_what_was_written_is_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FILE)
    with serving(None, tmp_path) as url:
        body = {"path": "a.py", "edit": BLOCK, "write": True}
        first = post(url, body, "one")
        assert (tmp_path / "a.py").read_text() == MERGED
        (tmp_path / "a.py").write_text(FILE)
        assert post(url, body, "one").content == first.content
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
    answers = IdempotencyStore(max_bytes=10 * BYTES_BESIDE + 10 * 3)
    once(answers, "one", OLD, "other")
    for number in range(11):
        once(answers, f"key-{number}", OLD)
    assert once(answers, "key-10", NEW).content == b"old"
    assert once(answers, "key-0", NEW).content == b"new"
    assert once(answers, "one", NEW, "other").content == b"old"
    large = EncodedAnswer(200, b"x" * 11 * BYTES_BESIDE)
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
