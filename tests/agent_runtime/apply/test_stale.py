"""An edit of an earlier version of a file is merged with what has changed since, or refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import pytest

import hunk
from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.rule_process import RuleProcesses
from agent_runtime.client import Client, WorkspaceRequest
from agent_runtime.errors import BadFile, EditRefused, Stale
from agent_runtime.server.service import Service
from agent_runtime.types import ApplyRequest
from agent_runtime.workspace.history import History
from agent_runtime.workspace.registry import WorkspaceRegistry
from agent_runtime.workspace.workspace import replace_file
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import hunk_here, post, serving

BASE = "LIMIT = 10\n\n\ndef load():\n    return 1\n\n\ndef save():\n    return 2\n"
EDIT = {"old_string": "LIMIT = 10", "new_string": "LIMIT = 20"}
OTHER = BASE.replace("return 2", "return 3  # changed since")
MERGED = OTHER.replace("LIMIT = 10", "LIMIT = 20")
TOUCHED = BASE.replace("LIMIT = 10", "LIMIT = 11")


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def no_model() -> NoReturn:
    raise AssertionError("rules decide this edit")


def merge(current: bytes, base: bytes, edit: Any = EDIT, **options: Any) -> Any:
    request = ApplyRequest(current, edit, "a.py", base=base, **options)
    return Applier(no_model).apply(request).file


def test_both_changes_are_in_the_file_and_the_result_is_one_of_the_file_as_it_is_now() -> None:
    file = merge(OTHER.encode(), BASE.encode())
    assert (file.status, file.merged, file.certainty, file.conflicts) == ("merged", MERGED, "certain", 0)
    assert (file.sha256_before, file.sha256_after, file.base_sha256) == (digest(OTHER), digest(MERGED), digest(BASE))
    assert [line for line in file.diff.split("\n") if line[:1] in "+-"][2:4] == ["-LIMIT = 10", "+LIMIT = 20"]
    assert file.checks[-1].name == "three_way"
    assert file.summary == "by rule (exact), certain; the file has changed since: merged three-way"


def test_a_file_that_has_not_changed_since_is_merged_as_without_a_base() -> None:
    same, without = merge(BASE.encode(), BASE.encode()), merge(BASE.encode(), BASE.encode())
    plain = Applier(no_model).apply(ApplyRequest(BASE.encode(), EDIT, "a.py")).file
    assert same == without == plain


def test_an_edit_is_read_in_its_base_though_its_place_is_gone_from_the_file() -> None:
    edit = {"old_string": "def save():\n    return 2\n", "new_string": "def save():\n    return 2\n\n\nsave()\n"}
    current = BASE.replace("def load():\n    return 1", "def load():\n    return 2\n\n\ndef save_all():\n    return 2")
    assert merge(current.encode(), BASE.encode(), edit).merged == current + "\n\nsave()\n"


def test_line_endings_byte_order_mark_and_encoding_are_those_of_the_file_now() -> None:
    text = MERGED.replace("since", "s\xedince")
    current = b"\xef\xbb\xbf" + text.replace("LIMIT = 20", "LIMIT = 10").replace("\n", "\r\n").encode()
    file = merge(current, BASE.encode())
    assert file.data == b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    old = text.replace("LIMIT = 20", "LIMIT = 10").encode("cp1252")
    assert (merge(old, BASE.encode()).encoding, merge(old, BASE.encode()).data) == ("cp1252", text.encode("cp1252"))


def test_a_conflict_is_refused_with_the_lines_of_the_file() -> None:
    with pytest.raises(EditRefused) as refused:
        merge(TOUCHED.encode(), BASE.encode())
    (reason,) = refused.value.reasons
    assert (reason.code, reason.num_candidates, reason.path) == ("conflict", 1, "a.py")
    assert reason.reason.endswith("in the same lines as the edit: line 1.")
    assert reason.nearest.split("\n") == ["the file has now:", "  1: LIMIT = 11", "  2: "]


def test_a_conflict_stands_between_markers_where_that_is_asked_for() -> None:
    file = merge(TOUCHED.encode(), BASE.encode(), on_conflict="markers")
    marked = "<<<<<<< the file now\nLIMIT = 11\n||||||| the base\nLIMIT = 10\n=======\nLIMIT = 20\n>>>>>>> the edit\n"
    assert (file.status, file.conflicts) == ("merged", 1)
    assert file.merged == TOUCHED.replace("LIMIT = 11\n", marked)
    assert file.summary.endswith("merged three-way, with 1 conflicts between markers")


def test_what_is_wrong_with_the_base_is_said_of_the_base() -> None:
    with pytest.raises(EditRefused) as refused:
        merge(BASE.encode(), b"other = 1\n")
    assert refused.value.reasons[0].reason.startswith("In the base of the edit: The old text does not stand in")
    with pytest.raises(BadFile, match=r"the base of a\.py: The file looks like UTF-16"):
        merge(BASE.encode(), b"\x00\x01")


def test_what_somebody_else_has_done_already_is_nothing_to_do() -> None:
    file = merge(MERGED.encode(), BASE.encode())
    assert (file.status, file.merged, file.diff) == ("noop", MERGED, "")
    assert merge(OTHER.encode(), BASE.encode(), BASE, format="whole").status == "noop"


def test_a_definition_that_both_have_added_is_rejected() -> None:
    edit = {"old_string": "def save():", "new_string": "def check():\n    return 4\n\n\ndef save():"}
    current = "def check():\n    return 5\n\n\n" + BASE
    file = merge(current.encode(), BASE.encode(), edit)
    assert (file.status, file.checks[-1].ok) == ("rejected", False)
    assert merge(current.encode(), BASE.encode(), edit, policy="lenient").status == "merged"


def test_a_merge_by_the_model_is_brought_together_with_the_file_too() -> None:
    request = ApplyRequest(OTHER.encode(), EDIT, "a.py", base=BASE.encode(), mode="model")
    merger = ScriptedMerger(BASE.replace("LIMIT = 10", "LIMIT = 20"))
    file = Applier(lambda: merger).apply(request).file
    assert (file.merged, file.certainty) == (MERGED, "model")


def test_of_several_files_all_conflicts_are_named_and_none_is_merged() -> None:
    requests = [
        ApplyRequest(text.encode(), EDIT, name, base=BASE.encode())
        for name, text in {"a.py": OTHER, "b.py": TOUCHED, "c.py": TOUCHED}.items()
    ]
    assert Applier(no_model).apply_each(requests[:1]).file.merged == MERGED
    with pytest.raises(EditRefused) as refused:
        Applier(no_model).apply_each(requests)
    assert [(reason.path, reason.code) for reason in refused.value.reasons] == [
        ("b.py", "conflict"),
        ("c.py", "conflict"),
    ]


def test_a_large_base_is_merged_in_a_process_with_the_same_result() -> None:
    rest = "".join(f"x{number} = {number}\n" for number in range(3000))
    processes = RuleProcesses(10.0, large_bytes=20_000)
    request = ApplyRequest((OTHER + rest).encode(), EDIT, "a.py", base=(BASE + rest).encode())
    try:
        aside = Applier(no_model, processes).apply(request)
    finally:
        processes.close()
    assert aside.file == Applier(no_model).apply(request).file
    assert aside.file.merged == MERGED + rest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.py").write_text(BASE)
    return tmp_path / "root"


def test_over_http_the_base_is_a_text_and_the_file_is_written(root: Path) -> None:
    (root / "a.py").write_text(OTHER)
    body = {"path": "a.py", "edit": EDIT, "write": True}
    with serving(None, root) as url:
        answer = post(url, body | {"base": BASE}).json()
        assert ((root / "a.py").read_text(), answer["base_sha256"], answer["conflicts"]) == (MERGED, digest(BASE), 0)
        (root / "a.py").write_text(TOUCHED)
        refused = post(url, body | {"base": BASE})
        assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (422, "conflict")
        marked = post(url, body | {"base": BASE, "on_conflict": "markers"}).json()
        assert (marked["conflicts"], marked["written"]) == (1, True)
        sent = {"original": OTHER, "base": BASE, "edit": EDIT, "path": "a.py"}
        assert post(url, sent).json()["merged"] == MERGED
        several = post(url, {"files": [sent, sent | {"path": "b.py", "base": None}]}).json()
        assert [file["merged"] for file in several["files"]] == [MERGED, MERGED]


def show(client: Client, root: Path) -> None:
    assert client.workspaces.read("a.py").text == BASE


def put_into_a_session(client: Client, root: Path) -> None:
    with client.session() as session:
        session.read(["a.py"])


def write(client: Client, root: Path) -> None:
    (root / "a.py").write_text("")
    request = WorkspaceRequest(BASE, "a.py", format="whole")
    assert client.apply(request, write=True).written


@pytest.mark.parametrize("see", [show, put_into_a_session, write])
def test_a_version_that_the_service_has_shown_or_written_is_known_by_its_hash(
    root: Path, see: Callable[[Client, Path], None]
) -> None:
    request = WorkspaceRequest(json.dumps(EDIT), "a.py", base_sha256=digest(BASE))
    with serving(None, root) as url, Client(url) as client:
        (root / "a.py").write_text(OTHER)
        with pytest.raises(Stale, match="not known here"):
            client.apply(request, write=True)
        (root / "a.py").write_text(BASE)
        see(client, root)
        (root / "a.py").write_text(OTHER)
        assert client.apply(request, write=True).merged == (root / "a.py").read_text() == MERGED


def keeping(root: Path, history: History) -> Callable[[Service], Service]:
    return lambda service: replace(service, workspaces=WorkspaceRegistry(root, history=history))


def test_a_version_in_the_history_is_known_though_another_process_wrote_over_it(root: Path, tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    replace_file(root / "a.py", OTHER.encode(), expected_sha256=digest(BASE), history=history)
    with serving(None, root, change=keeping(root, history)) as url:
        body = {"path": "a.py", "edit": EDIT, "base_sha256": digest(BASE)}
        assert post(url, body).json()["merged"] == MERGED


def test_the_hash_of_another_file_gives_nobody_its_text(root: Path, tmp_path: Path) -> None:
    (root / "secret.py").write_text("KEY = 1\n" + BASE)
    history = History(tmp_path / "history")
    replace_file(root / "secret.py", b"", expected_sha256=digest("KEY = 1\n" + BASE), history=history)
    with serving(None, root, change=keeping(root, history)) as url:
        body = {"path": "a.py", "edit": EDIT, "base_sha256": digest("KEY = 1\n" + BASE)}
        assert post(url, body).status_code == 409
        assert post(url, body | {"path": "secret.py"}).status_code in (200, 422)


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "a.py", "edit": EDIT, "base": BASE, "base_sha256": "0" * 64},
        {"edit": "*** Begin Patch\n*** End Patch", "base": BASE},
        {"files": [{"path": "a.py", "base": BASE}], "edit": "*** Begin Patch\n*** End Patch"},
        {"files": [], "base": BASE},
        {"path": "a.py", "edit": EDIT, "base": "\u20ac", "encoding": "latin-1", "original": BASE},
    ],
)
def test_a_base_in_the_wrong_place_is_a_clear_error(root: Path, fields: dict[str, Any]) -> None:
    with serving(None, root) as url:
        response = post(url, fields)
    assert (response.status_code, response.json()["field"]) == (400, response.json()["field"])
    assert response.json()["field"].startswith("base")


def test_on_the_command_line_the_base_is_a_file_or_a_hash_of_the_history(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HUNK_HISTORY")
    (root / "old").write_text(BASE)
    edit = json.dumps(EDIT)
    file = root / "a.py"
    file.write_text(OTHER)
    done = hunk_here("apply", file, "-e", "-", "--write", "--base", root / "old", stdin=edit)
    assert (done.exit_code, file.read_text()) == (0, MERGED)
    assert "the file has changed since: merged three-way" in done.stderr
    file.write_text(OTHER)
    os.mkfifo(root / "pipe")
    writer = threading.Thread(target=(root / "pipe").write_text, args=(BASE,))
    writer.start()
    piped = hunk_here("apply", file, "-e", "-", "--write", "--base", root / "pipe", stdin=edit)
    writer.join()
    assert (piped.exit_code, file.read_text()) == (0, MERGED)
    file.write_text(BASE)
    assert hunk_here("apply", file, "-e", "-", "--write", stdin=edit).exit_code == 0
    file.write_text(TOUCHED)
    known = ["apply", file, "-e", "-", "--write", "--base", digest(BASE)]
    assert hunk_here(*known, stdin=edit).exit_code == 3
    assert file.read_text() == TOUCHED
    marked = hunk_here(*known, "--on-conflict", "markers", stdin=edit)
    assert (marked.exit_code, "<<<<<<< the file now" in file.read_text()) == (3, True)
    unknown = hunk_here("apply", file, "-e", "-", "--base", "0" * 64, stdin=edit)
    assert "the history has no version" in str(unknown.exception)
    assert "--base needs a single file" in str(hunk_here("apply", "-e", "-", "--base", "x", stdin=edit).exception)


def test_the_one_line_call_takes_a_base_and_a_command(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HUNK_HISTORY")
    file = root / "a.py"
    file.write_text(OTHER)
    done = hunk.apply(file, EDIT, write=True, base=BASE.encode(), then=["grep", "-q", "LIMIT = 20", str(file)])
    assert (done.written, file.read_text()) == (True, MERGED)
    file.write_text(BASE)
    for command in ("exit 7", ["false"], f"sleep 0; grep -q 30 {file}"):
        with pytest.raises(EditRefused, match=r"the write is undone: .* ended with"):
            hunk.apply(file, EDIT, write=True, then=command)
        assert file.read_text() == BASE
    with pytest.raises(FileNotFoundError):
        hunk.apply(file, EDIT, write=True, then=["no-such-program"])
    assert file.read_text() == BASE
    with pytest.raises(hunk.errors.BadRequest, match="write=True"):
        hunk.apply(file, EDIT, then="true")
    monkeypatch.setenv("HUNK_HISTORY", "0")
    with pytest.raises(hunk.errors.BadRequest, match="HUNK_HISTORY"):
        hunk.apply(file, EDIT, write=True, then="true")
    assert file.read_text() == BASE
