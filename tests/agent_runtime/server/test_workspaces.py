"""Workspaces over HTTP: registered, listed, read, followed as they change, removed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime.server import views
from agent_runtime.server import views as browsing_changes
from agent_runtime.server.routes import workspaces as waiting
from agent_runtime.server.service import Service
from agent_runtime.workspace import registry
from agent_runtime.workspace.registry import WorkspaceRegistry
from repo_cache.cache import RepoCache
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving
from tests.models import RealModel

TEXT = "def f():\n    return 1\n"
OTHER = TEXT.replace("1", "2")


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text(TEXT)
    (root / "src" / "b.py").write_text(OTHER)
    (root / ".gitignore").write_text("*.log\n")
    (root / "x.log").write_text("ignored\n")
    (root / "picture.bin").write_bytes(b"\0\1\2")
    return root


@contextmanager
def service(root: Path | None, model: RealModel | None, **options: Any) -> Iterator[httpx.Client]:
    """A client of a service with this root, whose model's tokenizer is there already, if any."""
    workspaces = WorkspaceRegistry(root, report=lambda line: None, **options)
    if model is not None:
        workspaces.set_tokenizer(model.tokenizer)

    def change(made: Service) -> Service:
        return replace(made, workspaces=workspaces)

    try:
        with serving(None, change=change) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client
    finally:
        workspaces.close()


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:hunk:problem:")


def snapshot(client: httpx.Client, **query: Any) -> dict[str, Any]:
    answer = client.get("/workspaces/default/snapshot", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_folder_is_registered_seen_and_removed(tmp_path: Path, root: Path) -> None:
    shop = tmp_path / "allowed" / "shop"
    shop.mkdir(parents=True)
    (shop / "a.py").write_text(OTHER)
    with service(root, None, allowed=[tmp_path / "allowed"]) as client:
        made = client.post("/workspaces", json={"root": str(shop)})
        assert (made.status_code, made.headers["location"]) == (201, "/workspaces/shop")
        assert (made.json()["name"], made.json()["root"], made.json()["state"]) == ("shop", str(shop), "no-model")
        assert client.post("/workspaces", json={"root": str(shop)}).status_code == 200
        listed = client.get("/workspaces").json()["workspaces"]
        assert [each["name"] for each in listed] == ["default", "shop"]
        assert client.get("/workspaces/shop").json() == made.json()
        assert client.get("/workspaces/shop/files/a.py").json()["text"] == OTHER
        assert client.delete("/workspaces/shop").status_code == 204
        for answer in (
            client.get("/workspaces/shop"),
            client.delete("/workspaces/shop"),
            client.get("/workspaces/shop/files"),
            client.get("/workspaces/shop/files/a.py"),
            client.get("/workspaces/shop/snapshot"),
            client.get("/workspaces/shop/changes", params={"since": "x"}),
        ):
            assert kind(answer) == (404, "no-such-workspace")
        assert kind(client.delete("/workspaces/default")) == (409, "conflict")
        assert kind(client.post("/workspaces", json={"root": "/"})) == (403, "outside-root")
        assert kind(client.post("/workspaces", json={"root": "allowed"})) == (400, "malformed")
        assert kind(client.post("/workspaces", json={"root": str(shop), "name": "a/b"})) == (400, "malformed")
        assert kind(client.post("/workspaces", json={"root": str(shop), "nam": "a"})) == (422, "unsupported")


def test_files_are_listed_page_by_page_without_what_git_ignores(root: Path) -> None:
    with service(root, None) as client:
        whole = client.get("/workspaces/default/files").json()
        assert whole == {
            "files": [
                {"path": ".gitignore", "size": 6},
                {"path": "picture.bin", "size": 3},
                {"path": "src/a.py", "size": len(TEXT)},
                {"path": "src/b.py", "size": len(OTHER)},
            ],
            "next": None,
        }
        found, after = [], ""
        while after is not None:
            page = client.get("/workspaces/default/files", params={"limit": 3, "after": after}).json()
            found += page["files"]
            after = page["next"]
            (root / "z.py").write_text("")
        assert found == whole["files"], "all pages are of one walk"
        assert "z.py" in str(client.get("/workspaces/default/files").json())
        for limit in (0, 10_001, "x"):
            assert kind(client.get("/workspaces/default/files", params={"limit": limit}))[0] == 400


def test_one_file_is_read_as_text(root: Path) -> None:
    data = "\ufeffä = 1\r\n".encode("utf-16")
    (root / "odd name?.txt").write_bytes(data)
    (root / "way-out").symlink_to("/etc/hostname")
    with service(root, None) as client:
        assert client.get("/workspaces/default/files/src/a.py").json() == {
            "path": "src/a.py",
            "text": TEXT,
            "encoding": "utf-8",
            "sha256": hash_of(TEXT),
            "size": len(TEXT),
        }
        odd = client.get("/workspaces/default/files/odd%20name%3F.txt").json()
        assert odd["text"].encode(odd["encoding"]) == data
        assert (odd["sha256"], odd["size"]) == (sha256(data).hexdigest(), len(data))
        assert client.get("/workspaces/default/files/x.log").json()["text"] == "ignored\n"
        refused = {
            "none.py": (404, "not-found"),
            "src": (422, "bad-file"),
            "picture.bin": (422, "bad-file"),
            "..%2F..%2Fetc%2Fpasswd": (403, "outside-root"),
            "%2Fetc%2Fpasswd": (403, "outside-root"),
            "way-out": (403, "outside-root"),
            ".git/config": (403, "outside-root"),
        }
        for path, expected in refused.items():
            assert kind(client.get(f"/workspaces/default/files/{path}")) == expected, path


def test_without_a_root_there_are_no_workspaces() -> None:
    with service(None, None) as client:
        assert client.get("/workspaces").json() == {"workspaces": []}
        assert kind(client.get("/workspaces/default")) == (404, "no-such-workspace")


def test_the_status_tells_how_far_it_is(root: Path, smollm2: RealModel) -> None:
    with service(root, None) as client:
        assert client.get("/workspaces/default").json()["state"] == "no-model"
        answer = client.get("/workspaces/default/snapshot")
        assert kind(answer) == (503, "not-indexed")
        assert "not loaded yet" in answer.json()["detail"]
        assert answer.headers["retry-after"] == "2"
    with service(root, smollm2, watch=False) as client:
        assert client.get("/workspaces/default").json()["state"] == "unwatched"
        assert "--no-watch" in client.get("/workspaces/default/snapshot").json()["detail"]
    with service(root, smollm2) as client:
        assert client.get("/workspaces/default").json()["state"] == "idle"
        page = snapshot(client)
        status = client.get("/workspaces/default").json()
        assert (status["state"], status["version"], status["files"]) == ("watching", page["version"], 3)
        assert (status["tokens"], status["skipped"]) == (page["num_tokens"], 1)


def test_a_folder_that_cannot_be_indexed_says_so(root: Path, smollm2: RealModel) -> None:
    with service(root, smollm2) as client:
        (root / "src").rename(root.parent / "src")
        for path in root.iterdir():
            path.unlink()
        root.rmdir()
        assert kind(client.get("/workspaces/default/snapshot")) == (503, "not-indexed")
        status = client.get("/workspaces/default").json()
        assert status["state"] == "failed"
        assert "no folder" in status["detail"]


def test_a_snapshot_has_the_hashes_and_tokens_of_all_files(root: Path, smollm2: RealModel) -> None:
    with service(root, smollm2) as client:
        whole = snapshot(client)
        texts = {".gitignore": "*.log\n", "src/a.py": TEXT, "src/b.py": OTHER}
        assert whole["files"] == [
            {"path": path, "sha256": hash_of(text), "tokens": len(smollm2.tokenizer.encode(text)), "spans": None}
            for path, text in texts.items()
        ]
        assert (whole["num_files"], whole["next"]) == (3, None)
        assert whole["num_tokens"] == sum(file["tokens"] for file in whole["files"])
        first = snapshot(client, limit=2)
        assert first["next"] == "src/a.py"
        (root / "src" / "b.py").write_text(TEXT)
        wait_for_change(client, first["version"])
        rest = snapshot(client, limit=2, after=first["next"], version=first["version"])
        assert first["files"] + rest["files"] == whole["files"], "pages are of the version that was asked for"
        assert snapshot(client)["version"] != first["version"]
        spans = snapshot(client, spans=True)["files"]
        assert all(file["spans"][-1] == file["tokens"] for file in spans)
        assert kind(client.get("/workspaces/default/snapshot", params={"version": "x-1"})) == (410, "snapshot-gone")


def wait_for_change(client: httpx.Client, since: str) -> dict[str, Any]:
    answer = client.get("/workspaces/default/changes", params={"since": since, "timeout_s": 30})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["since"] == since
    assert found["version"] != since, "nothing has changed"
    return found


def test_changes_are_told_as_they_happen_and_add_up_to_the_snapshot(root: Path, smollm2: RealModel) -> None:
    with service(root, smollm2) as client, ThreadPoolExecutor() as pool:
        page = snapshot(client)
        known, version = {file["path"]: file["sha256"] for file in page["files"]}, page["version"]
        nothing = client.get("/workspaces/default/changes", params={"since": version, "timeout_s": 0}).json()
        assert nothing == {"since": version, "version": version, "changes": []}
        waiting = pool.submit(wait_for_change, client, version)
        (root / "src" / "a.py").write_text(OTHER)
        change = waiting.result()
        assert change["changes"] == [
            {
                "path": "src/a.py",
                "kind": "modified",
                "sha256_before": hash_of(TEXT),
                "sha256": hash_of(OTHER),
                "tokens": len(smollm2.tokenizer.encode(OTHER)),
                "old_path": None,
            }
        ]
        (root / "new.py").write_text("x = 1\n")
        (root / "src" / "b.py").unlink()
        (root / "src" / "a.py").rename(root / "moved.py")
        while known.keys() != {".gitignore", "moved.py", "new.py"}:
            version = change["version"]
            for one in change["changes"]:
                known.pop(one["old_path"], None)
                known.pop(one["path"], None)
                if one["kind"] != "removed":
                    known[one["path"]] = one["sha256"]
            if known.keys() != {".gitignore", "moved.py", "new.py"}:
                change = wait_for_change(client, version)
        assert known == {file["path"]: file["sha256"] for file in snapshot(client)["files"]}


def test_versions_are_kept_for_so_long(root: Path, smollm2: RealModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_SNAPSHOTS", 3)
    with service(root, smollm2) as client:
        first = version = snapshot(client)["version"]
        monkeypatch.setattr(browsing_changes, "MAX_CHANGES", 0)
        (root / "src" / "a.py").write_text(OTHER)
        answer = client.get("/workspaces/default/changes", params={"since": first, "timeout_s": 30})
        assert kind(answer) == (410, "snapshot-gone")
        monkeypatch.setattr(browsing_changes, "MAX_CHANGES", 10)
        for number in range(3):
            (root / "src" / "a.py").write_text(f"x = {number}\n")
            version = wait_for_change(client, version)["version"]
        answer = client.get("/workspaces/default/changes", params={"since": first})
        assert kind(answer) == (410, "snapshot-gone")
        assert "read the snapshot again" in answer.json()["detail"]
    with service(root, smollm2) as client:
        assert snapshot(client)["version"].endswith(first.rpartition("-")[2]), "its numbers are the same"
        answer = client.get("/workspaces/default/changes", params={"since": first, "timeout_s": 0})
        assert kind(answer) == (410, "snapshot-gone"), "a version of another run is none of this one's"


def test_only_so_many_wait(root: Path, smollm2: RealModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_POLLS_OF_TENANT", 1)
    with service(root, smollm2) as client, ThreadPoolExecutor() as pool:
        query = {"since": snapshot(client)["version"], "timeout_s": 30}
        answers = [pool.submit(client.get, "/workspaces/default/changes", params=query) for _ in range(2)]
        refused = next(as_completed(answers)).result()
        assert kind(refused) == (429, "too-many-requests")
        (root / "src" / "a.py").write_text(OTHER)
        assert sorted(answer.result().status_code for answer in answers) == [200, 429]
        query["since"] = snapshot(client)["version"]
        with pytest.raises(httpx.ReadTimeout):
            client.get("/workspaces/default/changes", params=query, timeout=0.2)
        answer = client.get("/workspaces/default/changes", params={**query, "timeout_s": 0})
        for _ in range(200):  # who has left makes room
            answer = client.get("/workspaces/default/changes", params={**query, "timeout_s": 0.01})
            if answer.status_code == 200:
                break
            time.sleep(0.02)
        assert answer.status_code == 200


def test_who_waits_hears_of_the_removal(tmp_path: Path, smollm2: RealModel) -> None:
    (tmp_path / "shop").mkdir()
    with service(None, smollm2, allowed=[tmp_path]) as client, ThreadPoolExecutor() as pool:
        client.post("/workspaces", json={"root": str(tmp_path / "shop")})
        version = client.get("/workspaces/shop/snapshot").json()["version"]
        begun = threading.Event()
        real = views.wait_for_change

        async def changed(*arguments: Any) -> None:
            begun.set()
            await real(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waiting, "wait_for_change", changed)
            answer = pool.submit(client.get, "/workspaces/shop/changes", params={"since": version, "timeout_s": 60})
            assert begun.wait(30)
            client.delete("/workspaces/shop")
            assert kind(answer.result()) == (503, "not-indexed")


def test_what_changed_before_anybody_listened_is_heard(root: Path, smollm2: RealModel) -> None:
    with RepoCache.open(root, smollm2.tokenizer, watch=False) as cache:
        before = cache.snapshot()
        (root / "src" / "a.py").write_text(OTHER)
        cache.refresh()
        asyncio.run(asyncio.wait_for(views.wait_for_change(cache, before), 60))


def test_the_model_is_told_which_workspace_a_file_is_of(root: Path, tmp_path: Path) -> None:
    shop = tmp_path / "allowed" / "shop"
    shop.mkdir(parents=True)
    (shop / "a.py").write_text(TEXT)
    merger = ScriptedMerger(OTHER)
    workspaces = WorkspaceRegistry(root, allowed=[tmp_path / "allowed"])
    workspaces.register(str(shop))

    def change(made: Service) -> Service:
        return replace(made, workspaces=workspaces)

    patch = "*** Begin Patch\n*** Update File: a.py\n-    return 1\n+    return 2\n*** End Patch\n"
    asked: list[tuple[dict[str, Any], str]] = [
        ({"path": "src/a.py", "edit": OTHER}, str(root)),
        ({"path": "a.py", "edit": OTHER, "workspace": "shop"}, str(shop)),
        ({"files": [{"path": "a.py", "edit": OTHER}], "workspace": "shop"}, str(shop)),
        ({"edit": patch, "workspace": "shop"}, str(shop)),
        ({"path": "a.py", "original": TEXT, "edit": OTHER, "workspace": "shop"}, ""),
    ]
    with serving(merger, change=change) as url:
        for body, _ in asked:
            answer = httpx.post(f"{url}/apply", json={**body, "mode": "model"}, timeout=30)
            assert answer.status_code == 200, answer.text
        session = httpx.post(f"{url}/sessions", json={"workspace": "shop"}).headers["location"]
        edit = {"path": "a.py", "edit": OTHER, "mode": "model"}
        assert httpx.post(f"{url}{session}/apply", json=edit, timeout=30).status_code == 200
    assert [request.root for request in merger.seen] == [*(folder for _, folder in asked), str(shop)]


def test_a_version_of_a_snapshot_is_the_base_of_an_edit_that_names_its_hash(root: Path, smollm2: RealModel) -> None:
    with service(root, smollm2) as client:
        first = snapshot(client)
        (base,) = [file["sha256"] for file in first["files"] if file["path"] == "src/a.py"]
        line, rest = TEXT.split("\n", 1)
        (root / "src" / "a.py").write_text(TEXT + "\n\nLAST = 1\n")
        wait_for_change(client, first["version"])
        edit = {"old_string": line, "new_string": f"{line}  # edited"}
        body = {"path": "src/a.py", "edit": edit, "base_sha256": base}
        answer = client.post("/apply", json=body).json()
        assert answer["merged"] == f"{line}  # edited\n{rest}\n\nLAST = 1\n"
        assert kind(client.post("/apply", json=body | {"path": "src/b.py"})) == (409, "stale")
