"""SessionRegistry over HTTP do what they do in process, whole or in a stream; SmolLM2 on a real socket."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import ModelUnavailable, SessionMissing, TooManyRequests
from agent_runtime.request_context import ALL_SCOPES, Principal
from agent_runtime.server.service import Service
from agent_runtime.session import ServerSession, SessionRegistry, files
from agent_runtime.session import session as one_session
from agent_runtime.session import session as sessions
from agent_runtime.telemetry.metrics import Observer, RequestOutcome
from agent_runtime.workspace.registry import WorkspaceRegistry
from engine.engine import Engine
from tests.agent_runtime.serving import RecordingSlots, serving
from tests.agent_runtime.session.conftest import A, B, Begin, Served

EDIT = "<<<<<<< SEARCH\nLIMIT = 30\n=======\nLIMIT = 99\n>>>>>>> REPLACE\n"
B2 = B.replace("30", "99")


class Kept(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[RequestOutcome] = []

    def on_outcome(self, outcome: RequestOutcome) -> None:
        self.told.append(outcome)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def client(served: Served, root: Path, kept: Kept, tmp_path: Path) -> Iterator[httpx.Client]:
    (tmp_path / "more").mkdir()

    def change(service: Service) -> Service:
        service.metering.subscribe(kept)
        workspaces = WorkspaceRegistry(root, allowed=[tmp_path / "more"])
        workspaces.set_tokenizer(served.chat().text.tokenizer)
        return replace(service, workspaces=workspaces)

    with serving(served, change=change) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def begun(client: httpx.Client, **body: Any) -> str:
    answer = client.post("/sessions", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/sessions/{answer.json()['id']}"
    return str(answer.headers["location"])


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:hunk:problem:")


def without_times(answer: Any) -> Any:
    """An answer as JSON, without what differs from run to run."""
    known = json.loads(json.dumps(answer))
    known.pop("timings", None)
    return known


def test_over_http_a_session_does_what_it_does_in_process(client: httpx.Client, begin: Begin, root: Path) -> None:
    session, at = begin(), begun(client, reuse="exact")
    read = client.post(f"{at}/read", json={"paths": ["b.py"], "texts": {"own": "x = 1\n"}, "with_text": True}).json()
    assert read == {
        "files": [asdict(file) for file in session.read(["b.py"], texts={"own": "x = 1\n"}, with_text=True)]
    }
    options: dict[str, Any] = {"max_tokens": 5, "clock": "It is noon.\n", "temperature": 0.7, "seed": 3}
    told = client.post(f"{at}/ask", json={"question": "What is it?", **options}).json()
    assert without_times(told) == without_times(asdict(session.ask("What is it?", **options)))
    applied = client.post(f"{at}/apply", json={"edit": EDIT, "path": "b.py"}).json()
    ours = session.apply(EDIT, path="b.py")
    assert (
        (applied["merged"], applied["status"], applied["written"])
        == (B2, "merged", False)
        == (
            ours.file.merged,
            ours.status,
            ours.written,
        )
    )
    written = client.post(f"{at}/apply", json={"edit": EDIT, "path": "b.py", "write": True}).json()
    assert (written["written"], (root / "b.py").read_text()) == (True, B2)
    told = client.post(f"{at}/ask", json={"question": "And now?", "max_tokens": 5}).json()
    answer = session.ask("And now?", max_tokens=5)
    assert without_times(told) == without_times(asdict(answer))
    assert told["files"] == [{"path": "b.py", "state": "changed", "sha256": sha256(B2.encode()).hexdigest()}]
    state = client.get(at).json()
    expected = without_times(asdict(session.state()))
    assert without_times(state) == {**expected, "id": at.rpartition("/")[2], "workspace": "default"}


def events(response: httpx.Response) -> list[tuple[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.read().decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_a_streamed_answer_is_the_whole_one_in_pieces(client: httpx.Client) -> None:
    whole, streamed = begun(client), begun(client)
    for at in (whole, streamed):
        client.post(f"{at}/read", json={"paths": ["a.py"]})
    answer = client.post(f"{whole}/ask", json={"question": "What is it?", "max_tokens": 12}).json()
    body = {"question": "What is it?", "max_tokens": 12, "stream": True}
    with client.stream("POST", f"{streamed}/ask", json=body) as response:
        told = events(response)
    assert told[-1][0] == "result"
    result = told[-1][1]
    assert (result["text"], result["finish_reason"]) == (answer["text"], answer["finish_reason"])
    pieces = [piece for name, data in told if name == "tokens" for piece in data["pieces"]]
    assert "".join(piece["text"] for piece in pieces) == result["text"]
    assert {name for name, _ in told} == {"phase", "tokens", "result"}
    with client.stream("POST", f"{whole}/apply", json={"edit": EDIT, "path": "b.py", "stream": True}) as response:
        told = events(response)
    assert (told[-1][0], told[-1][1]["merged"]) == ("result", B2)


def test_problems_are_told(client: httpx.Client, root: Path) -> None:
    at = begun(client)
    assert kind(client.post("/sessions", json={"workspace": "none"})) == (404, "no-such-workspace")
    assert kind(client.post("/sessions", json={"reuse": "some"})) == (400, "malformed")
    assert kind(client.get("/sessions/none")) == (404, "no-such-session")
    for call in ("read", "ask", "apply"):
        body = {"read": {}, "ask": {"question": "?"}, "apply": {"edit": EDIT}}[call]
        assert kind(client.post(f"/sessions/none/{call}", json=body)) == (404, "no-such-session")
        assert kind(client.post(f"{at}/{call}", json={**body, "unknown": 1})) == (422, "unsupported")
    assert kind(client.post(f"{at}/read", json={"paths": ["none.py"]})) == (404, "not-found")
    assert kind(client.post(f"{at}/read", json={"paths": ["../x"]})) == (403, "outside-root")
    assert kind(client.post(f"{at}/ask", json={"question": " "})) == (400, "malformed")
    assert kind(client.post(f"{at}/ask", json={"question": " ", "stream": True})) == (400, "malformed")
    assert kind(client.post(f"{at}/ask", json={"question": "?", "max_tokens": 0})) == (400, "malformed")
    body = {"edit": EDIT, "path": "b.py", "expected_sha256": "0" * 64}
    stale = client.post(f"{at}/apply", json=body)
    assert kind(stale) == (409, "stale")
    assert stale.json()["current_sha256"] == sha256(B.encode()).hexdigest()
    body = {"edit": EDIT.replace("30", "31"), "path": "b.py", "mode": "deterministic"}
    assert kind(client.post(f"{at}/apply", json=body)) == (422, "edit-refused")
    client.post(f"{at}/read", json={"texts": {"long": "value = 1\n" * 700}})
    assert kind(client.post(f"{at}/ask", json={"question": "?"})) == (413, "too-large")
    assert client.get(at).json()["messages"] == []
    assert client.delete(at).status_code == 204
    assert kind(client.delete(at)) == (404, "no-such-session")


def test_a_second_call_is_refused_while_one_works(client: httpx.Client) -> None:
    at = begun(client)
    body = {"question": "?", "max_tokens": 1000, "temperature": 10.0, "stream": True}
    with client.stream("POST", f"{at}/ask", json=body) as response:
        parts = response.iter_bytes()  # held: a generator that is let go of hangs up
        next(parts)
        busy = client.post(f"{at}/ask", json={"question": "?"})
        assert kind(busy) == (409, "session-busy")
        assert busy.headers["retry-after"] == "1"
        assert client.get(at).json()["messages"] == []
    until = time.monotonic() + 60
    while (answer := client.post(f"{at}/ask", json={"question": "Is it?", "max_tokens": 1})).status_code == 409:
        assert time.monotonic() < until, "who has hung up is waited for"
        time.sleep(0.02)
    assert answer.status_code == 200
    assert client.get(at).json()["messages"][0]["text"] == "Is it?"


def test_a_question_that_is_sent_again_is_not_asked_twice(client: httpx.Client) -> None:
    at, other = begun(client), begun(client)
    body, key = {"question": "What is it?", "max_tokens": 3}, {"idempotency-key": "one"}
    first = client.post(f"{at}/ask", json=body, headers=key)
    again = client.post(f"{at}/ask", json=body, headers=key)
    assert first.content == again.content
    assert len(client.get(at).json()["messages"]) == 2
    assert kind(client.post(f"{other}/ask", json=body, headers=key)) == (422, "idempotency-key-reused")


def test_sessions_end_with_their_workspace(client: httpx.Client, tmp_path: Path) -> None:
    assert client.post("/workspaces", json={"root": str(tmp_path / "more")}).status_code == 201
    (tmp_path / "more" / "c.py").write_text("x = 1\n")
    at, other = begun(client, workspace="more"), begun(client)
    assert client.post(f"{at}/read", json={"paths": ["c.py"]}).status_code == 200
    assert client.get(at).json()["workspace"] == "more"
    client.delete("/workspaces/more")
    assert kind(client.get(at)) == (404, "no-such-session")
    assert client.get(other).status_code == 200


def test_who_counts_is_told(client: httpx.Client, kept: Kept) -> None:
    at = begun(client)
    client.post(f"{at}/read", json={"paths": ["b.py"]})
    client.post(f"{at}/ask", json={"question": "?", "max_tokens": 2})
    client.post(f"{at}/apply", json={"edit": EDIT, "path": "b.py"})
    client.post(f"{at}/ask", json={"question": " "})
    asked, applied, refused = kept.told
    assert (asked.route, asked.outcome, asked.usage.completion) == ("/sessions/{session_id}/ask", "answered", 2)
    assert asked.first_token_ms is not None
    assert (applied.route, applied.outcome) == ("/sessions/{session_id}/apply", "merged")
    assert applied.first_token_ms is None
    assert refused.outcome == "malformed"


def test_the_model_says_how_its_sessions_follow_changes(client: httpx.Client, root: Path) -> None:
    assert client.get(begun(client)).json()["reuse"] == "exact"
    at = begun(client, reuse="balanced")
    client.post(f"{at}/read", json={"paths": ["a.py"]})
    client.post(f"{at}/ask", json={"question": "?", "max_tokens": 1})
    (root / "a.py").write_text(A.replace("x + 5", "x + 555"))
    answer = client.post(f"{at}/ask", json={"question": "And now?", "max_tokens": 1}).json()
    assert answer["noted"] == ["a.py"]
    assert answer["usage"]["cached"] > 200


def test_what_a_session_does_by_rule_has_a_place_until_the_model_is_asked(
    served: Served, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    generate = Engine.generate

    def record(*arguments: Any) -> Any:
        events.append("asked")
        return generate(*arguments)

    monkeypatch.setattr(Engine, "generate", record)

    def change(service: Service) -> Service:
        return replace(service, workspaces=WorkspaceRegistry(root), cpu_slots=RecordingSlots(events))

    calls: list[tuple[str, dict[str, Any], list[str]]] = [
        ("read", {"paths": ["b.py"]}, ["acquired"]),
        ("ask", {"question": "What?", "max_tokens": 1}, ["acquired", "released", "asked"]),
        ("ask", {"question": "And?", "max_tokens": 1, "stream": True}, ["acquired", "released", "asked"]),
        ("apply", {"edit": EDIT, "path": "b.py"}, ["acquired"]),
    ]
    with serving(served, change=change) as url, httpx.Client(base_url=url, timeout=60) as client:
        at = begun(client)
        for call, body, expected in calls:
            events.clear()
            assert client.post(f"{at}/{call}", json=body).status_code == 200
            assert events == expected, call


# Sessions belong to a tenant, are limited in number, and expire when idle.


ANN = Principal("ann", ALL_SCOPES)
BOB = Principal("bob", ALL_SCOPES)


def no_model() -> object:
    raise ModelUnavailable("there is none")


def session() -> ServerSession:
    return ServerSession(Applier(no_model), no_model)  # type: ignore[arg-type]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def begin(sessions: SessionRegistry, principal: Principal) -> ServerSession:
    made = session()
    sessions.add(made, principal)
    return made


def is_there(sessions: SessionRegistry, made: ServerSession, principal: Principal) -> bool:
    """Counts as a use, where it is."""
    try:
        return sessions.get(made.id, principal) is made
    except SessionMissing:
        with pytest.raises(SessionMissing):
            made.read([])
        return False


def test_a_tenant_finds_its_own_only() -> None:
    sessions = SessionRegistry()
    own = begin(sessions, ANN)
    assert sessions.get(own.id, ANN) is own
    for call in (sessions.get, sessions.remove):
        with pytest.raises(SessionMissing):
            call(own.id, BOB)
        with pytest.raises(SessionMissing):
            call("none", ANN)
    sessions.remove(own.id, ANN)
    assert not is_there(sessions, own, ANN)
    assert len(sessions) == 0


def test_what_is_not_used_for_long_ends() -> None:
    clock = Clock()
    sessions = SessionRegistry(idle_seconds=10.0, now=clock)
    first, second = begin(sessions, ANN), begin(sessions, ANN)
    clock.now = 8.0
    assert sessions.get(first.id, ANN) is first
    clock.now = 12.0
    assert not is_there(sessions, second, ANN)
    assert is_there(sessions, first, ANN)
    assert len(sessions) == 1


@pytest.mark.parametrize("limits", [{"max_of_tenant": 2}, {"max_in_all": 2}])
def test_the_one_used_longest_ago_gives_way(limits: dict[str, int]) -> None:
    sessions = SessionRegistry(**limits)  # type: ignore[arg-type]
    first, second = begin(sessions, ANN), begin(sessions, ANN)
    assert is_there(sessions, first, ANN)
    third = begin(sessions, ANN)
    assert [is_there(sessions, each, ANN) for each in (first, second, third)] == [True, False, True]


def test_one_tenant_s_sessions_do_not_push_another_s_out() -> None:
    sessions = SessionRegistry(max_of_tenant=1)
    ann = begin(sessions, ANN)
    begin(sessions, BOB)
    bob = begin(sessions, BOB)
    assert is_there(sessions, ann, ANN)
    assert is_there(sessions, bob, BOB)


def working(made: ServerSession, meanwhile: Callable[[], None]) -> None:
    """Do something while a call of the session works."""
    with made._lock_call():
        meanwhile()


def test_what_works_does_not_give_way() -> None:
    clock = Clock()
    sessions = SessionRegistry(max_of_tenant=2, idle_seconds=10.0, now=clock)
    first, second = begin(sessions, ANN), begin(sessions, ANN)

    def full() -> None:
        third = begin(sessions, ANN)
        assert is_there(sessions, first, ANN)
        assert not is_there(sessions, second, ANN)

        def fuller() -> None:
            with pytest.raises(TooManyRequests):
                begin(sessions, ANN)
            clock.now = 20.0
            assert is_there(sessions, first, ANN)

        working(third, fuller)

    working(first, full)


def test_the_sessions_of_something_end_with_it() -> None:
    sessions = SessionRegistry()
    made = [begin(sessions, ANN) for _ in range(3)]
    sessions.end_matching(lambda each: each is not made[1])
    assert [is_there(sessions, each, ANN) for each in made] == [False, True, False]


# The code of docs/sessions.md runs, and its limits are those of the source.


DOC = (Path(__file__).resolve().parents[3] / "docs" / "sessions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)


def test_the_example_runs(served: Served, tmp_path: Path) -> None:
    (tmp_path / "limits.py").write_text("LIMIT = 10\n\n\n" + A)
    (block,) = BLOCKS
    said = io.StringIO()
    with serving(served, tmp_path) as url, contextlib.redirect_stdout(said):
        exec(compile(block, "docs/sessions.md", "exec"), {"url": url})
    read, first, applied, second = said.getvalue().splitlines()
    assert read == "limits.py new"
    assert re.fullmatch(r"(stop|length) \d+ 0", first)
    assert applied == "merged True"
    assert second == "[('limits.py', 'changed')] ('limits.py',)"


def test_the_limits_are_those_that_hold() -> None:
    limits = DOC.partition("## Limits")[2]
    for said in (
        f"{files.MAX_SESSION_FILES}, of {files.MAX_BYTES / 1e6:.1f} MB together",
        f"{one_session.MAX_ANSWER_TOKENS:,} tokens by default",
        f"{sessions.MAX_OF_TENANT} per tenant and {sessions.MAX_IN_ALL} in all",
    ):
        assert said in limits
    assert sessions.IDLE_SECONDS == 3600, "an hour"
