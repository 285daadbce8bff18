"""`write` over HTTP: the merged files in their places, all or none, and nothing that was not merged."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.server.service import Service
from agent_runtime.telemetry.metrics import Observer, RequestOutcome
from agent_runtime.types import Usage
from agent_runtime.workspace.history import History
from agent_runtime.workspace.registry import WorkspaceRegistry
from agent_runtime.workspace.workspace import replace_file
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import asking, post, serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
MERGED = "a = 3\nb = 2\n"
PATCH = """*** Begin Patch
*** Update File: a.py
-a = 1
+a = 3
*** Add File: new/one.py
+x = 1
*** Delete File: gone.py
*** Update File: old.py
*** Move to: moved.py
-c = 1
+c = 2
*** End Patch
"""


@dataclass
class Meddling(ScriptedMerger):
    """Merges as it is told, but does something else first."""

    first: Callable[[], object] = lambda: None

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        self.first()
        return super().merge(task, context, progress)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {"a.py": FILE, "b.py": FILE, "gone.py": "g = 1\n", "old.py": "c = 1\n"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def texts(root: Path) -> dict[str, str]:
    return {str(file.relative_to(root)): file.read_text() for file in sorted(root.rglob("*")) if file.is_file()}


def test_a_merged_file_is_written_and_the_answer_says_so(root: Path) -> None:
    (root / "a.py").write_bytes(b"\xef\xbb\xbf" + FILE.replace("\n", "\r\n").encode())
    (root / "a.py").chmod(0o750)
    with serving(None, root) as url:
        answer = post(url, {"path": "a.py", "edit": BLOCK, "write": True}).json()
    data = (root / "a.py").read_bytes()
    assert data == b"\xef\xbb\xbf" + MERGED.replace("\n", "\r\n").encode()
    assert (answer["written"], answer["sha256"]) == (True, sha256(data).hexdigest())
    assert (root / "a.py").stat().st_mode & 0o777 == 0o750


def test_without_it_nothing_is_written_and_the_answer_is_the_same(root: Path) -> None:
    before = texts(root)
    with serving(None, root) as url:
        dry = post(url, {"edit": PATCH}).json()
        assert texts(root) == before
        wet = post(url, {"edit": PATCH, "write": True}).json()
    assert (dry.pop("written"), wet.pop("written")) == (False, True)
    assert dry | {"timings": {}} == wet | {"timings": {}}
    assert texts(root) == {"a.py": MERGED, "b.py": FILE, "new/one.py": "x = 1\n", "moved.py": "c = 2\n"}


def test_what_is_done_already_is_left_as_it_is(root: Path) -> None:
    (root / "b.py").write_text(MERGED)
    before = (root / "b.py").stat()
    body = {"files": [{"path": path, "edit": MERGED} for path in ("a.py", "b.py")], "format": "whole", "write": True}
    with serving(None, root) as url:
        answer, again = post(url, body).json(), post(url, body).json()
    assert [file["status"] for file in answer["files"]] == ["merged", "noop"]
    assert (answer["written"], again["status"], again["written"]) == (True, "noop", False)
    assert (root / "a.py").read_text() == MERGED
    assert (root / "b.py").stat().st_mtime_ns == before.st_mtime_ns
    assert (root / "b.py").stat().st_ino == before.st_ino, "it was written anew"


def test_a_move_that_is_done_already_keeps_nothing_from_being_written(root: Path) -> None:
    (root / "old.py").rename(root / "moved.py")
    patch = "*** Begin Patch\n*** Update File: old.py\n*** Move to: moved.py\n"
    patch += "*** Update File: a.py\n-a = 1\n+a = 3\n*** End Patch\n"
    with serving(None, root) as url:
        answer = post(url, {"edit": patch, "write": True}).json()
    assert [(file["action"], file["status"]) for file in answer["files"]] == [("move", "noop"), ("update", "merged")]
    assert answer["written"]
    assert texts(root) == {"a.py": MERGED, "b.py": FILE, "gone.py": "g = 1\n", "moved.py": "c = 1\n"}


def test_a_rejected_merge_is_not_written(root: Path) -> None:
    with serving(ScriptedMerger("", truncated=True), root) as url:
        answer = post(url, {"path": "a.py", "edit": BLOCK, "mode": "model", "write": True}).json()
    assert (answer["status"], answer["written"]) == ("rejected", False)
    assert (root / "a.py").read_text() == FILE


def test_one_file_that_changes_meanwhile_is_a_conflict_and_none_is_written(root: Path) -> None:
    merger = Meddling(MERGED, first=lambda: (root / "b.py").write_text("other\n"))
    files = [{"path": "a.py", "edit": BLOCK}, {"path": "b.py", "edit": BLOCK}]
    with serving(merger, root) as url:
        response = post(url, {"files": files, "mode": "model", "write": True})
    assert (response.status_code, response.json()["type"]) == (409, "urn:hunk:problem:stale")
    assert response.json()["current_sha256"] == sha256(b"other\n").hexdigest()
    assert ((root / "a.py").read_text(), (root / "b.py").read_text()) == (FILE, "other\n")


@pytest.mark.parametrize("beside_an_edit_of_all", [False, True])
def test_a_hash_that_is_not_the_files_is_a_conflict(root: Path, beside_an_edit_of_all: bool) -> None:
    before = texts(root)
    file = {"path": "a.py", "expected_sha256": "0" * 64}
    body = {"files": [file], "edit": PATCH} if beside_an_edit_of_all else file | {"edit": BLOCK}
    with serving(None, root) as url:
        response = post(url, body | {"write": True})
        assert (response.status_code, response.json()["current_sha256"]) == (409, sha256(FILE.encode()).hexdigest())
        assert texts(root) == before
        file["expected_sha256"] = response.json()["current_sha256"]
        body = {"files": [file], "edit": PATCH} if beside_an_edit_of_all else file | {"edit": BLOCK}
        assert post(url, body | {"write": True}).json()["written"]


def test_one_file_that_is_refused_keeps_all_from_being_written(root: Path) -> None:
    before = texts(root)
    with serving(None, root) as url:
        response = post(url, {"edit": PATCH.replace("-c = 1", "-c = 7"), "write": True, "mode": "deterministic"})
    assert response.status_code == 422
    assert texts(root) == before


def test_nothing_is_written_for_a_client_that_has_left(root: Path) -> None:
    class Deaf(ScriptedMerger):
        """Hears that it is to stop, and finishes all the same."""

        asked = threading.Event()

        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            told = threading.Event()
            progress.on_start()
            context.cancel.add_callback(told.set)
            self.asked.set()
            assert told.wait(30), "nobody told it that the client has left"
            return ModelMerge(MERGED, False, Usage(), {})

    class Told(Observer):
        outcomes: queue.Queue[str] = queue.Queue()

        def on_outcome(self, outcome: RequestOutcome) -> None:
            self.outcomes.put(outcome.outcome)

    def told(service: Service) -> Service:
        service.metering.subscribe(Told())
        return service

    with serving(Deaf(), root, change=told) as url:
        with asking(url, {"path": "a.py", "edit": BLOCK, "mode": "model", "write": True}):
            assert Deaf.asked.wait(30)
        assert Told.outcomes.get(timeout=30) == "cancelled"
    assert (root / "a.py").read_text() == FILE


def test_a_workspace_is_named(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "a.py").write_text(FILE)

    def with_other(service: Service) -> Service:
        workspaces = WorkspaceRegistry(root, allowed=[other])
        workspaces.register(str(other), "other")
        return replace(service, workspaces=workspaces)

    with serving(None, change=with_other) as url:
        assert post(url, {"path": "a.py", "edit": BLOCK, "workspace": "other", "write": True}).json()["written"]
    assert ((other / "a.py").read_text(), (root / "a.py").read_text()) == (MERGED, FILE)


def test_a_service_without_files_writes_none() -> None:
    with serving(None) as url:
        response = post(url, {"edit": PATCH, "write": True})
    assert (response.status_code, response.json()["type"]) == (403, "urn:hunk:problem:outside-root")


def undo(url: str, **body: str) -> httpx.Response:
    return httpx.post(f"{url}/undo", json=body, timeout=30)


def test_a_write_is_undone_and_done_again_by_its_id(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    history = History(tmp_path_factory.mktemp("history"))
    before = texts(root)
    with serving(
        None, root, change=lambda one: replace(one, workspaces=WorkspaceRegistry(root, history=history))
    ) as url:
        assert undo(url).json()["type"] == "urn:hunk:problem:no-such-write"
        wrote = post(url, {"edit": PATCH, "write": True}).json()
        after = texts(root)
        assert after != before
        done = undo(url, id=wrote["write_id"])
        assert done.status_code == 200, done.text
        assert texts(root) == before
        assert {file["path"] for file in done.json()["files"]} == {
            "a.py",
            "new/one.py",
            "gone.py",
            "old.py",
            "moved.py",
        }
        assert undo(url, id=done.json()["id"]).json()["undoes"] == done.json()["id"]
        assert texts(root) == after
        (root / "a.py").write_text("mine\n")
        stale = undo(url)
        assert (stale.status_code, str(root) in stale.text) == (409, False)
        assert texts(root) == after | {"a.py": "mine\n"}


def test_writes_elsewhere_are_not_this_workspaces(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    history, elsewhere = History(tmp_path_factory.mktemp("history")), tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a.py").write_text(FILE)
    digest = sha256(FILE.encode()).hexdigest()
    replace_file(elsewhere / "a.py", MERGED.encode(), expected_sha256=digest, history=history)
    (write,) = history.list_writes()
    with serving(
        None, root, change=lambda one: replace(one, workspaces=WorkspaceRegistry(root, history=history))
    ) as url:
        for answer in (undo(url), undo(url, id=write.id)):
            assert answer.status_code == 404
            assert str(elsewhere) not in answer.text
    assert (elsewhere / "a.py").read_text() == MERGED


def test_without_a_history_nothing_can_be_undone(root: Path) -> None:
    with serving(None, root) as url:
        assert post(url, {"path": "a.py", "edit": BLOCK, "write": True}).json()["written"]
        assert undo(url).status_code == 422
    with serving(None) as url:
        assert undo(url).status_code == 403
