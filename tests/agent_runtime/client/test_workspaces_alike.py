"""Both clients send the same requests about workspaces and sessions, and parse the answers alike."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agent_runtime.client import NO_RETRIES, Client
from agent_runtime.errors import (
    Busy,
    NoConnection,
    OutsideRoot,
    SessionMissing,
    SnapshotGone,
    WorkspaceMissing,
)
from agent_runtime.server.views import (
    ChangedFile,
    SnapshotFile,
    SnapshotPage,
    WorkspaceChanges,
    WorkspaceStatus,
)
from agent_runtime.session import SeenFile, SessionAnswer
from agent_runtime.testing import Events, FakeService, Reply, merged_result
from agent_runtime.types import Usage
from agent_runtime.workspace.registry import ListedFile
from tests.agent_runtime.client.both import both

STATUS = {"name": "mine", "root": "/srv/mine", "state": "watching", "detail": "", "files": 2, "tokens": 9, "later": 1}
ANSWER = {
    "text": "20",
    "finish_reason": "stop",
    "usage": {"prompt": 10, "cached": 6, "recomputed": 4, "completion": 1, "forwards": 1},
    "timings": {"total_ms": 5.0},
    "files": [{"path": "a.py", "state": "new", "sha256": "0" * 64}],
    "noted": ["a.py"],
}
RESULT = merged_result("a\n", "b\n", "a.py")


def test_a_state_is_read_and_what_a_later_version_says_of_it_passed_over() -> None:
    expected = WorkspaceStatus("mine", "/srv/mine", "watching", files=2, tokens=9)
    outcome, _ = both(
        lambda client: client.workspaces.status("mine"), lambda fake: fake.script("GET /workspaces/mine", STATUS)
    )
    assert outcome.value == expected
    outcome, _ = both(
        lambda client: client.workspaces.list(), lambda fake: fake.script("GET /workspaces", {"workspaces": [STATUS]})
    )
    assert outcome.value == (expected,)


def test_registering_and_removing() -> None:
    outcome, service = both(
        lambda client: client.workspaces.register("/srv/mine", "mine"),
        lambda fake: fake.script("POST /workspaces", httpx.ReadError("reset"), Reply(STATUS, 200)),
    )
    assert outcome.value.name == "mine"
    assert [sent.body for sent in service.requests] == [{"root": "/srv/mine", "name": "mine"}] * 2
    outcome, _ = both(
        lambda client: client.workspaces.remove("mine"),
        lambda fake: fake.script("DELETE /workspaces/mine", Reply(None, 204)),
    )
    assert (outcome.value, outcome.error) == (None, None)
    outcome, service = both(
        lambda client: client.workspaces.remove("mine"),
        lambda fake: fake.script("DELETE /workspaces/mine", httpx.ReadError("reset")),
    )
    assert outcome.error is not None
    assert len(service.requests) == 1, "it may have been removed, and another one made since"


def test_files_are_read_page_by_page() -> None:
    pages = [
        {"files": [{"path": "a.py", "size": 1}], "next": "a.py"},
        {"files": [{"path": "ü b.py", "size": 2}], "next": "ü b.py"},
        {"files": [], "next": None},
    ]
    outcome, service = both(
        lambda client: client.workspaces.files("mine"),
        lambda fake: fake.script("GET /workspaces/mine/files", *pages),
    )
    assert outcome.value == (ListedFile("a.py", 1), ListedFile("ü b.py", 2))
    assert [sent.query.get("after") for sent in service.requests] == [None, "a.py", "ü b.py"]


def test_all_pages_of_a_snapshot_are_of_one_version() -> None:
    head = {"version": "x-1", "num_files": 2, "num_tokens": 7}
    pages = [
        {**head, "files": [{"path": "a.py", "sha256": "0", "tokens": 3, "spans": [1, 3]}], "next": "a.py"},
        {**head, "files": [{"path": "b.py", "sha256": "1", "tokens": 4, "spans": [4]}], "next": None},
    ]
    outcome, service = both(
        lambda client: client.workspaces.snapshot(spans=True),
        lambda fake: fake.script("GET /workspaces/default/snapshot", *pages),
    )
    files = SnapshotFile("a.py", "0", 3, (1, 3)), SnapshotFile("b.py", "1", 4, (4,))
    assert outcome.value == SnapshotPage("x-1", 2, 7, files, None)
    assert [(sent.query.get("after"), sent.query.get("version")) for sent in service.requests] == [
        (None, None),
        ("a.py", "x-1"),
    ]
    assert all(sent.query["spans"] == "true" for sent in service.requests)


def test_changes_since_a_version() -> None:
    change = {"path": "a.py", "kind": "modified", "sha256_before": "0", "sha256": "1", "tokens": 3, "old_path": None}
    answer = {"since": "x-1", "version": "x-2", "changes": [change]}
    outcome, service = both(
        lambda client: client.workspaces.changes("x-1", timeout_s=3.0),
        lambda fake: fake.script("GET /workspaces/default/changes", answer),
    )
    assert outcome.value == WorkspaceChanges("x-1", "x-2", (ChangedFile("a.py", "modified", "0", "1", 3, None),))
    assert service.requests[0].query == {"since": "x-1", "timeout_s": "3.0"}


def test_a_path_that_leads_out_reaches_the_service_as_it_is() -> None:
    fault = OutsideRoot("out")
    outcome, _ = both(
        lambda client: client.workspaces.read("../x y"),
        lambda fake: fake.script("GET /workspaces/default/files/../x y", fault),
    )
    assert outcome.error is not None
    assert outcome.error[0] is OutsideRoot


@pytest.mark.parametrize("fault", [WorkspaceMissing("which?"), SnapshotGone("too old")])
def test_refusals_are_raised(fault: Exception) -> None:
    outcome, service = both(
        lambda client: client.workspaces.snapshot("mine"),
        lambda fake: fake.script("GET /workspaces/mine/snapshot", fault),
    )
    assert outcome.error is not None
    assert outcome.error[0] is type(fault)
    assert len(service.requests) == 1


def in_session(doing: Any) -> Any:
    """Run `doing` with a session of either client."""

    def blocking(client: Any) -> Any:
        with client.session(workspace="mine", reuse="fast", preamble="Be brief.") as session:
            return doing(session)

    async def asynchronous(client: Any) -> Any:
        async with client.session(workspace="mine", reuse="fast", preamble="Be brief.") as session:
            done = doing(session)
            return [await each for each in done] if isinstance(done, list) else await done

    def either(client: Any) -> Any:
        return blocking(client) if isinstance(client, Client) else asynchronous(client)

    return either


def script_session(fake: FakeService) -> FakeService:
    fake.script("POST /sessions", Reply({"id": "s/1"}, 201)).script("DELETE /sessions/s/1", Reply(None, 204))
    return fake


def test_a_question_in_a_session() -> None:
    outcome, service = both(
        in_session(lambda session: session.ask("What?", max_tokens=5, stop=("zz",), clock="noon")),
        lambda fake: script_session(fake).script("POST /sessions/s/1/ask", httpx.ReadError("reset"), ANSWER),
    )
    usage = Usage(prompt=10, cached=6, recomputed=4, completion=1, forwards=1)
    assert outcome.value == SessionAnswer(
        "20", "stop", usage, {"total_ms": 5.0}, (SeenFile("a.py", "new", "0" * 64),), ("a.py",)
    )
    begun, asked, again, ended = service.requests
    assert begun.body == {"workspace": "mine", "reuse": "fast", "preamble": "Be brief."}
    assert asked.body == {"question": "What?", "max_tokens": 5, "stop": ["zz"], "clock": "noon", "stream": False}
    assert asked.headers["idempotency-key"] == again.headers["idempotency-key"] != ""
    assert "idempotency_key" not in asked.body
    assert (ended.method, ended.path) == ("DELETE", "/sessions/s/1")


def test_an_edit_in_a_session() -> None:
    outcome, service = both(
        in_session(lambda session: session.apply("edit", path="a.py", write=True, idempotency_key="mine")),
        lambda fake: script_session(fake).script("POST /sessions/s/1/apply", RESULT),
    )
    assert outcome.value == RESULT
    sent = service.requests[1]
    assert sent.body == {"edit": "edit", "path": "a.py", "write": True, "stream": False}
    assert sent.headers["idempotency-key"] == "mine"


def test_what_each_turn_took_is_kept_and_what_failed_is_not() -> None:
    service = script_session(FakeService())
    service.script("POST /sessions/s/1/ask", ANSWER, Busy("later"), Events(ANSWER))
    service.script("POST /sessions/s/1/apply", RESULT)
    with Client("http://fake", transport=service, retries=NO_RETRIES) as client, client.session() as session:
        session.ask("one?")
        with pytest.raises(Busy):
            session.ask("two?")
        assert [*session.stream("three?")][-1].text == "20"
        session.apply("edit")
    usage = session.usage
    assert [turn.kind for turn in usage.turns] == ["ask", "ask", "apply"]
    assert (usage.total.prompt, usage.total.cached, usage.total.prefix_hit_rate) == (20, 12, 0.6)


def test_a_session_begins_with_its_first_call_and_one_that_never_did_ends_nothing() -> None:
    service = FakeService()
    with Client("http://fake", transport=service) as client, client.session() as session:
        assert session.usage.turns == ()
    assert service.requests == []
    assert isinstance(session, type(client.session()))
    with pytest.raises(SessionMissing):
        session.state()


def test_the_end_of_a_session_that_cannot_be_told_is_raised_but_hides_no_other_error() -> None:
    service = FakeService().script("POST /sessions", {"id": "1"}).script("POST /sessions/1/read", {"files": []})
    service.script("DELETE /sessions/1", httpx.ReadError("reset"))
    with Client("http://fake", transport=service, retries=NO_RETRIES) as client:
        first, second = client.session(), client.session()
        first.read([])
        second.read([])
        with pytest.raises(NoConnection), first:
            pass
        with pytest.raises(ZeroDivisionError), second:
            raise ZeroDivisionError
