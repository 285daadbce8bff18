"""TenantRateLimiter over HTTP: each has its own workspaces and sessions, and finds nothing of another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime.request_context import AccessScope
from tests.security.guarded import Guarded, guarded

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
