"""Requests do not disturb one another: rules have a time limit, and tenants see nothing of each other."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime import wiring
from agent_runtime.apply import pipeline
from agent_runtime.apply.pipeline import Applier
from agent_runtime.request_context import AccessScope
from agent_runtime.server.service import Service
from editor.execution import check_stopped
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import asking, serving
from tests.security.guarded import Guarded, guarded

SLOW = {"original": "slow = 1\n", "edit": "slow = 2\n", "path": "slow.py"}
QUICK = {"original": "a = 1\n", "edit": '{"old_string": "a = 1", "new_string": "a = 2"}'}
CHAT = {
    "messages": [{"role": "user", "content": "<code>slow = 1\n</code><update>slow = 2\n</update>"}],
    "model": "hunk",
}


class Endless:
    """An edit by rule that goes on until it is told to end, and looks whether it is; then `ended` says with what."""

    def __init__(self, apply: Callable[..., Any]) -> None:
        self._apply = apply
        self.begun = threading.Semaphore(0)
        self.ended: list[str] = []

    def __call__(self, owner: Applier, request: Any, *more: Any) -> Any:
        if b"slow" not in request.original:
            return self._apply(owner, request, *more)
        self.begun.release()
        try:
            while True:
                time.sleep(0)  # others run
                check_stopped()
        except Exception as fault:
            self.ended.append(type(fault).__name__)
            raise


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    endless = Endless(Applier.apply)
    monkeypatch.setattr(Applier, "apply", lambda *arguments: endless(*arguments))
    return endless


@contextmanager
def limited(seconds: float) -> Iterator[str]:
    def change(service: Service) -> Service:
        return replace(service, rule_seconds=seconds)

    with serving(ScriptedMerger(), change=change) as url:
        yield url


@pytest.mark.parametrize(
    ("path", "body"), [("/apply", SLOW), ("/apply", SLOW | {"stream": True}), ("/v1/chat/completions", CHAT)]
)
def test_it_ends_when_its_client_leaves(endless: Endless, path: str, body: dict[str, Any]) -> None:
    with limited(3600) as url:
        with asking(url, body, path):
            assert endless.begun.acquire(timeout=30)
            assert httpx.post(f"{url}/apply", json=QUICK, timeout=30).json()["status"] == "merged"
            assert not endless.ended
        while not endless.ended:
            time.sleep(0.01)
    assert endless.ended == ["Cancelled"]


def test_it_ends_when_its_time_is_over_and_says_what_to_send(endless: Endless) -> None:
    with limited(0.05) as url:
        answer = httpx.post(f"{url}/apply", json=SLOW, timeout=60)
        quick = httpx.post(f"{url}/apply", json=QUICK, timeout=60)
    assert endless.ended == ["EditRefused"]
    assert answer.status_code == 422
    assert [reason["code"] for reason in answer.json()["reasons"]] == ["too_much_work"]
    assert "parts" in answer.json()["reasons"][0]["suggestion"]
    assert quick.json()["status"] == "merged", "each has its own time"


def test_what_waits_for_its_place_when_its_client_leaves_does_not_begin(endless: Endless) -> None:
    """Two of one sender run; the third is not begun when it gets the place of a client that has left."""
    with limited(3600) as url:
        asked = [asking(url, SLOW) for _ in range(2)]
        connections = [each.__enter__() for each in asked]
        assert all(endless.begun.acquire(timeout=30) for _ in connections)
        with asking(url, SLOW):
            while "hunk_http_requests_in_flight 4.0" not in httpx.get(f"{url}/metrics").text:  # with this question
                time.sleep(0.01)
        for connection in connections:
            connection.shutdown(socket.SHUT_RDWR)
        while "hunk_http_requests_in_flight 1.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)
        for each in asked:
            each.__exit__(None, None, None)
    assert endless.ended == ["Cancelled"] * 2
    assert not endless.begun.acquire(blocking=False)


def test_the_service_has_large_edits_done_aside_and_small_ones_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `hunk serve` is wired; the answers are the same."""
    text = "".join(f"value_{number} = {number}\n" for number in range(6000))
    edit = {"edit": '{"old_string": "value_77 = 77", "new_string": "value_77 = 78"}', "path": "a.py"}
    sent, done = [{"original": text[:2000], **edit}, {"original": text, **edit}], Counter[str]()

    def wired(service: Service) -> Service:
        parts = wiring.build_service(service.model, service.workspaces, deadline_s=3.0)
        assert parts.rule_seconds == 3.0
        return parts

    def counted(*arguments: Any) -> Any:
        done["here"] += 1
        return begin_here(*arguments)

    with serving(ScriptedMerger()) as url:
        before = [httpx.post(f"{url}/apply", json=body, timeout=60).json() for body in sent]
    begin_here = pipeline._parse
    monkeypatch.setattr(pipeline, "_parse", counted)
    with serving(ScriptedMerger(), change=wired) as url:
        after = [httpx.post(f"{url}/apply", json=body, timeout=60).json() for body in sent]
    assert [answer["status"] for answer in after] == ["merged", "merged"]
    assert [answer | {"timings": {}} for answer in after] == [answer | {"timings": {}} for answer in before]
    assert done["here"] == 1


ALL: tuple[AccessScope, ...] = ("apply", "read", "admin")
TOKENS: dict[str, tuple[str, tuple[AccessScope, ...]]] = {
    "ann": ("ann", ALL),
    "ann-reads": ("ann", ("read",)),
    "ann-applies": ("ann", ("apply",)),
    "bob": ("bob", ALL),
}


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:hunk:problem:")


def register(service: Guarded, token: str, root: Path, name: str) -> httpx.Response:
    return service.ask("POST", "/workspaces", token, json={"root": str(root), "name": name})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("root", "ann", "ann/inner", "bob"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.py").write_text(f"# of {name}\n")
    return tmp_path


def test_a_tenant_finds_nothing_of_another_s(folder: Path) -> None:
    with guarded(folder, folder / "root", TOKENS) as service:
        assert register(service, "ann", folder / "ann", "shop").status_code == 201
        assert kind(register(service, "bob", folder / "ann" / "inner", "mine")) == (403, "outside-root")
        for method, path in (
            ("GET", "/workspaces/shop"),
            ("DELETE", "/workspaces/shop"),
            ("GET", "/workspaces/shop/files"),
            ("GET", "/workspaces/shop/files/a.py"),
            ("GET", "/workspaces/shop/snapshot"),
            ("GET", "/workspaces/shop/changes?since=x"),
        ):
            ours, none = service.ask(method, path, "bob"), service.ask(method, path.replace("shop", "none"), "bob")
            assert kind(ours) == kind(none) == (404, "no-such-workspace")
            assert ours.json()["detail"].replace("shop", "none") == none.json()["detail"], "nothing tells the two apart"
        assert kind(service.ask("POST", "/sessions", "bob", json={"workspace": "shop"})) == (404, "no-such-workspace")
        edit: dict[str, Any] = {"path": "a.py", "edit": "x = 1\n", "format": "whole", "workspace": "shop"}
        assert kind(service.ask("POST", "/apply", "bob", json=edit)) == (404, "no-such-workspace")
        session = service.ask("POST", "/sessions", "ann", json={"workspace": "shop"}).headers["location"]
        for method, path, body in (
            ("GET", session, None),
            ("DELETE", session, None),
            ("POST", f"{session}/read", {"paths": ["a.py"]}),
            ("POST", f"{session}/ask", {"question": "?"}),
            ("POST", f"{session}/apply", {"edit": "x"}),
        ):
            assert kind(service.ask(method, path, "bob", json=body)) == (404, "no-such-session")
        read = service.ask("POST", f"{session}/read", "ann", json={"paths": ["a.py"], "with_text": True}).json()
        assert read["files"][0]["text"] == "# of ann\n"
        assert service.ask("GET", "/workspaces/default/files/a.py", "bob").json()["text"] == "# of root\n"
        assert register(service, "bob", folder / "bob", "shop").status_code == 201
        assert service.ask("GET", "/workspaces/shop/files/a.py", "bob").json()["text"] == "# of bob\n"
        assert service.ask("GET", "/workspaces/shop/files/a.py", "ann").json()["text"] == "# of ann\n"


def test_each_call_takes_its_scope(folder: Path) -> None:
    with guarded(folder, folder / "root", TOKENS) as service:
        assert kind(register(service, "ann-reads", folder / "ann", "shop")) == (403, "forbidden")
        assert kind(register(service, "ann-applies", folder / "ann", "shop")) == (403, "forbidden")
        register(service, "ann", folder / "ann", "shop")
        assert kind(service.ask("DELETE", "/workspaces/shop", "ann-reads")) == (403, "forbidden")
        for path in ("", "/shop", "/shop/files", "/shop/files/a.py"):
            assert service.ask("GET", f"/workspaces{path}", "ann-reads").status_code == 200
            assert kind(service.ask("GET", f"/workspaces{path}", "ann-applies")) == (403, "forbidden")
        assert kind(service.ask("POST", "/sessions", "ann-reads", json={})) == (403, "forbidden")
        session = service.ask("POST", "/sessions", "ann-applies", json={"workspace": "shop"}).headers["location"]
        assert kind(service.ask("GET", session, "ann-reads")) == (403, "forbidden")
        assert service.ask("GET", session, "ann").status_code == 200, "it is the tenant's, whichever token began it"
