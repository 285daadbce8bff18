"""`stream` over HTTP: the events of a merge, and clients that leave or read slowly."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from httpx_sse import ServerSentEvent, connect_sse
from hypothesis import example, given
from hypothesis import strategies as st

from agent_runtime.errors import Busy, Cancelled, ModelFailed, Stale
from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.request_context import Piece, ProgressListener, RequestContext
from agent_runtime.server import service as apply_stream
from agent_runtime.server.service import MAX_PIECES, EventQueue
from agent_runtime.server.uvicorn_server import TimeoutH11Protocol
from agent_runtime.types import Usage
from agent_runtime.workspace.workspace import Workspace
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import asking, post, serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
MERGED = "a = 3\nb = 2\n"
PIECES = [Piece("a =", "copied"), Piece(" 3", "generated"), Piece("\nb = 2\n", "copied")]


class Telling(ScriptedMerger):
    """Tells what a real model tells, a piece a pass, and then does something else."""

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        progress.on_start()
        context.cancel.add_callback(self.cancelled.set)
        progress.on_phase("prefill")
        for number, piece in enumerate(PIECES):
            progress.on_tokens(number + 1)
            if number == 0:
                progress.on_phase("decode")
            if progress.wants_text:
                progress.on_pieces(0, [piece])
        self.then(progress)
        return ModelMerge(MERGED, False, Usage(prompt=10, recomputed=10, completion=5, forwards=3), {})

    def then(self, progress: ProgressListener) -> None:
        """Nothing else."""


def events(url: str, body: dict[str, Any]) -> list[ServerSentEvent]:
    with httpx.Client(timeout=30) as client, connect_sse(client, "POST", f"{url}/apply", json=body) as source:
        assert source.response.status_code == 200, source.response.read()
        assert source.response.headers["cache-control"] == "no-cache"
        return list(source.iter_sse())


ASKED: dict[str, Any] = {"original": FILE, "edit": BLOCK, "mode": "model", "stream": True}


def test_phases_tokens_and_the_result_come_in_their_order() -> None:
    with serving(Telling()) as url:
        got = events(url, ASKED)
        plain = post(url, ASKED | {"stream": False}).json()
    phases = [event.json()["phase"] for event in got if event.event == "phase"]
    assert phases == ["parse", "merge", "prefill", "decode", "verify"]
    pieces = [piece for event in got if event.event == "tokens" for piece in event.json()["pieces"]]
    assert [Piece(**piece) for piece in pieces] == PIECES
    assert {event.json()["region"] for event in got if event.event == "tokens"} == {0}
    assert [event.event for event in got].count("result") == 1
    assert got[-1].event == "result"
    assert got[-1].json() | {"timings": {}} == plain | {"timings": {}}


def test_an_edit_that_a_rule_merges_streams_too() -> None:
    with serving(None) as url:
        got = events(url, ASKED | {"mode": "auto"})
    assert [event.event for event in got] == ["phase", "phase", "phase", "result"]
    assert (got[-1].json()["merged"], got[-1].json()["method"]) == (MERGED, "deterministic")


def test_of_several_files_events_say_which() -> None:
    files = [{"path": f"{name}.py", "original": FILE, "edit": BLOCK} for name in "ab"]
    with serving(Telling()) as url:
        got = events(url, {"files": files, "mode": "model", "stream": True})
    for path in ("a.py", "b.py"):
        told = [event.json() for event in got if event.json().get("path") == path]
        assert [each["phase"] for each in told if "phase" in each] == ["prefill", "decode"]
        assert "".join(piece["text"] for each in told for piece in each.get("pieces", ())) == MERGED
    assert [file["merged"] for file in got[-1].json()["files"]] == [MERGED, MERGED]


def test_what_is_refused_before_the_model_takes_it_on_is_an_ordinary_problem() -> None:
    class Full(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> NoReturn:
            raise Busy("as many wait as may")

    with serving(Full()) as url:
        busy = post(url, ASKED)
        refused = post(url, ASKED | {"edit": BLOCK.replace("a = 1", "zzz"), "mode": "deterministic"})
        malformed = post(url, ASKED | {"temperature": -1})
        missing = post(url, {"path": "none.py", "edit": BLOCK, "stream": True})
    assert (busy.status_code, busy.headers["retry-after"], busy.json()["retry_after_s"]) == (429, "1", 1.0)
    assert [each.status_code for each in (refused, malformed, missing)] == [422, 400, 403]
    for response in (busy, refused, malformed, missing):
        assert response.headers["content-type"] == "application/problem+json"


def test_a_file_that_changes_meanwhile_is_an_ordinary_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(FILE)

    def beaten(self: Workspace, files: object, *more: object) -> None:
        time.sleep(0.05)
        raise Stale("a.py has changed", current_sha256="0" * 64)

    monkeypatch.setattr(Workspace, "write", beaten)
    with serving(None, tmp_path) as url:
        response = post(url, {"path": "a.py", "edit": BLOCK, "write": True, "stream": True})
    assert (response.status_code, response.headers["content-type"]) == (409, "application/problem+json")


@pytest.mark.parametrize(("fault", "kind"), [(ModelFailed("broke down"), "model-failed"), (KeyError(), "internal")])
def test_what_fails_behind_that_is_the_last_event(fault: Exception, kind: str) -> None:
    has_begun = threading.Event()

    class Failing(Telling):
        def then(self, progress: ProgressListener) -> NoReturn:
            assert has_begun.wait(30)
            raise fault

    with serving(Failing()) as url, httpx.Client(timeout=30) as client:
        with connect_sse(client, "POST", f"{url}/apply", json=ASKED) as source:
            assert source.response.status_code == 200
            has_begun.set()
            got = list(source.iter_sse())
        assert post(url, ASKED | {"mode": "auto", "stream": False}).status_code == 200
    assert got[-1].event == "problem"
    assert (got[-1].json()["type"], got[-1].json()["status"]) == (f"urn:hunk:problem:{kind}", 500)


def test_an_answer_that_was_kept_is_one_event() -> None:
    with serving(Telling()) as url, httpx.Client(timeout=30) as client:
        answers = []
        for _ in range(2):
            with connect_sse(client, "POST", f"{url}/apply", json=ASKED, headers={"Idempotency-Key": "one"}) as source:
                answers.append((source.response.headers.get("idempotent-replayed"), list(source.iter_sse())))
    (new, first), (replayed, second) = answers
    assert (new, replayed) == (None, "true")
    assert [event.event for event in second] == ["result"]
    assert second[-1].data == first[-1].data


def test_comments_keep_the_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_stream, "HEARTBEAT_SECONDS", 0.02)
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    assert merger.hold is not None
    with serving(merger) as url, httpx.stream("POST", f"{url}/apply", json=ASKED, timeout=30) as response:
        lines = response.iter_lines()
        assert [next(line for line in lines if line.startswith(":")) for _ in range(3)] == [": ping"] * 3
        merger.hold.set()
        assert next(line for line in lines if line.startswith("event: result"))


def test_a_client_that_leaves_ends_the_work() -> None:
    merger = ScriptedMerger(MERGED, hold=threading.Event())
    with serving(merger) as url:
        with asking(url, ASKED) as connection:
            assert b"text/event-stream" in connection.recv(2000)
        assert merger.cancelled.wait(30)


class Gushing(ScriptedMerger):
    """Writes without end, and far more than any buffer on the way holds."""

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> NoReturn:
        progress.on_start()
        context.cancel.add_callback(self.cancelled.set)
        piece = Piece("x" * 10_000, "generated")
        number = 0
        while not self.cancelled.is_set():
            number += 1
            progress.on_tokens(number)
            progress.on_pieces(0, [piece] * 100)
            time.sleep(0.001)
        raise Cancelled("whoever asked has left")


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeoutH11Protocol, "stall_s", 0.3)
    merger = Gushing()
    with serving(merger) as url, asking(url, ASKED) as connection:
        assert merger.cancelled.wait(30), "the work went on for a client that does not read"
        with suppress(ConnectionResetError):
            while connection.recv(1 << 20):
                pass  # what was on the way; then there is no connection


def test_one_that_reads_slowly_misses_nothing() -> None:
    text = "".join(f"{number}\n" for number in range(50_000))

    class Long(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            progress.on_start()
            context.cancel.add_callback(self.cancelled.set)
            for start in range(0, len(text), 1000):
                progress.on_tokens(start + 1)
                progress.on_pieces(0, [Piece(text[start : start + 1000], "generated")])
            return ModelMerge(text, False, Usage(), {})

    received = b""
    with serving(Long()) as url, asking(url, ASKED | {"policy": "lenient"}) as connection:
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(1 << 14)
    told, merged = _texts(received)
    assert told == text
    assert merged == text


def _texts(received: bytes) -> tuple[str, str]:
    """What the `tokens` said together, and the result's text."""
    body = _unchunked(received.partition(b"\r\n\r\n")[2]).decode()
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":") for block in body.split("\n\n")
    ]
    told = [json.loads(block["data"]) for block in blocks if block.get("event") == "tokens"]
    (result,) = [json.loads(block["data"]) for block in blocks if block.get("event") == "result"]
    return "".join(piece["text"] for each in told for piece in each["pieces"]), result["merged"]


def _unchunked(body: bytes) -> bytes:
    """HTTP's chunks put together."""

    def chunks(rest: bytes) -> Iterator[bytes]:
        at = 0
        while True:
            end = rest.index(b"\r\n", at)
            size = int(rest[at:end], 16)
            if not size:
                return
            yield rest[end + 2 : end + 2 + size]
            at = end + 2 + size + 2

    return b"".join(chunks(body))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take")),
        st.tuples(st.just("phase"), st.sampled_from(["", "a.py"]), st.sampled_from(["prompt", "decode"])),
        st.tuples(
            st.just("pieces"),
            st.sampled_from(["", "a.py"]),
            st.integers(0, 2),
            st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["copied", "generated"])), min_size=1, max_size=4),
        ),
    ),
    max_size=60,
)


def told_of(events: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What a client knows of each file: its phases, and between them, each region's characters with their origins."""
    known: dict[str, list[Any]] = {}
    for event in events:
        of_file = known.setdefault(event.get("path", ""), [{}])
        if "phase" in event:
            of_file += [event["phase"], {}]
        else:
            characters = [(one, piece["origin"]) for piece in event["pieces"] for one in piece["text"]]
            of_file[-1].setdefault(event["region"], []).extend(characters)
    return known


PIECES_EVENT = ("pieces", "", 0, [("x", "copied")])


@given(STEPS)
@example([PIECES_EVENT, ("phase", "", "prompt"), PIECES_EVENT])
@example([PIECES_EVENT, ("phase", "a.py", "prompt"), PIECES_EVENT, ("take",), PIECES_EVENT])
def test_whenever_it_is_taken_it_says_what_was_told(steps: list[Any]) -> None:
    async def run() -> None:
        events = EventQueue()
        taken: list[dict[str, Any]] = []
        told: list[dict[str, Any]] = []
        for kind, *rest in steps:
            if kind == "phase":
                path, phase = rest
                events.on_phase(phase, path)
                told.append({"phase": phase, "path": path})
            elif kind == "pieces":
                path, region, pairs = rest
                events.on_pieces(region, [Piece(*pair) for pair in pairs], path)
                told.append({"region": region, "path": path, "pieces": [{"text": t, "origin": o} for t, o in pairs]})
            else:
                taken += [event.data() for event in events.take()]
        taken += [event.data() for event in events.take()]
        assert told_of(taken) == told_of(told)

    asyncio.run(run())


def test_what_nobody_takes_is_one_event_of_few_pieces() -> None:
    async def run() -> None:
        events = EventQueue()
        for number in range(20_000):
            events.on_pieces(number % 2, [Piece("x", "copied")])
        waiting = events.take()
        assert len(waiting) == 2
        for event in waiting:
            pieces = event.data()["pieces"]
            assert len(pieces) <= MAX_PIECES
            assert sum(len(piece["text"]) for piece in pieces) == 10_000

    asyncio.run(run())


def test_it_is_woken_from_another_thread_and_waits_no_longer_than_it_is_told() -> None:
    async def run() -> None:
        events = EventQueue()
        assert not await events.wait(0.01)
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(events.wait(30))
        await loop.run_in_executor(None, events.on_phase, "merge")
        assert await waiting
        events.take()
        assert not await events.wait(0.01), "what was taken is no longer there"

    asyncio.run(run())
