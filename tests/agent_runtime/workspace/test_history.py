"""What is kept of writes, and how it is put back: by the command, and whoever made the write."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st

import hunk
from agent_runtime.client.local import LocalClient
from agent_runtime.errors import BadRequest, NoSuchWrite, OutsideRoot, Stale
from agent_runtime.workspace import history as kept
from agent_runtime.workspace import undo
from agent_runtime.workspace.history import FileVersions, History, OldFile
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.undo import undo_write
from agent_runtime.workspace.workspace import FileChange, replace_file, write_files
from tests.agent_runtime.serving import hunk_here

EDIT = json.dumps({"old_string": "LIMIT = 10", "new_string": "LIMIT = 20"})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HUNK_HISTORY")
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    return tmp_path / "repo"


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "cache" / "history")


@pytest.fixture
def file(root: Path) -> Path:
    path = root / "a.py"
    path.write_bytes(b"LIMIT = 10\r\n")
    path.chmod(0o754)
    return path


def write_by_command(file: Path) -> None:
    assert hunk_here("apply", file, "-e", "-", "--write", stdin=EDIT).exit_code == 0


def write_by_function(file: Path) -> None:
    assert hunk.apply(file, json.loads(EDIT), write=True).status == "merged"


def write_by_service(file: Path) -> None:
    with LocalClient(file.parent, model=None, watch=False) as client:
        assert client.apply(hunk.WorkspaceRequest(EDIT, file.name), write=True).written


def write_as_patch(file: Path) -> None:
    patch = f"*** Begin Patch\n*** Update File: {file.name}\n@@\n-LIMIT = 10\n+LIMIT = 20\n*** End Patch\n"
    assert hunk_here("apply", "--root", file.parent, "-e", "-", "--write", stdin=patch).exit_code == 0


@pytest.mark.parametrize("write", [write_by_command, write_by_function, write_by_service, write_as_patch])
def test_every_way_to_write_can_be_undone_and_done_again(
    file: Path, history: History, write: Callable[[Path], None]
) -> None:
    write(file)
    assert file.read_bytes() == b"LIMIT = 20\r\n"
    assert hunk_here("undo").stdout == "put back a.py\n"
    assert file.read_bytes() == b"LIMIT = 10\r\n"
    assert file.stat().st_mode & 0o777 == 0o754
    undo, first = history.list_writes()
    assert undo.undoes == first.id
    assert isinstance(hunk_here("undo").exception, NoSuchWrite), "it is undone already"
    assert hunk_here("undo", undo.id).exit_code == 0
    assert file.read_bytes() == b"LIMIT = 20\r\n"
    assert hunk_here("undo").exit_code == 0, "it is in force again"
    assert file.read_bytes() == b"LIMIT = 10\r\n"


def test_several_files_come_back_together_or_not_at_all(root: Path, file: Path) -> None:
    (root / "b.py").write_text("b = 1\n")
    (root / "b.py").chmod(0o755)
    patch = (
        "*** Begin Patch\n*** Update File: a.py\n@@\n-LIMIT = 10\n+LIMIT = 20\n*** Delete File: b.py\n"
        "*** Add File: d/c.py\n+c = 1\n*** End Patch\n"
    )
    assert hunk_here("apply", "-e", "-", "--write", stdin=patch).exit_code == 0
    (root / "d" / "c.py").write_text("c = 2\n")
    refused = hunk_here("undo")
    assert isinstance(refused.exception, Stale)
    assert "d/c.py has changed since that write" in str(refused.exception)
    assert not (root / "b.py").exists()
    (root / "d" / "c.py").write_text("c = 1\n")
    assert set(hunk_here("undo").stdout.splitlines()) == {"put back a.py", "made again b.py", "removed d/c.py"}
    assert file.read_bytes() == b"LIMIT = 10\r\n"
    assert (root / "b.py").stat().st_mode & 0o777 == 0o755
    assert not (root / "d" / "c.py").exists()


def test_an_undo_refuses_a_file_that_changed_or_is_gone(file: Path) -> None:
    write_by_command(file)
    file.write_text("mine\n")
    assert isinstance(hunk_here("undo").exception, Stale)
    assert file.read_text() == "mine\n"
    file.unlink()
    assert isinstance(hunk_here("undo").exception, Stale)
    assert not file.exists()


def test_the_log_is_of_the_folder_and_says_what_was_undone(root: Path, file: Path, tmp_path: Path) -> None:
    assert "nothing was written" in hunk_here("log").stderr
    write_by_command(file)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.py").write_text("LIMIT = 10\n")
    write_by_command(tmp_path / "other" / "b.py")
    assert hunk_here("log").stdout.splitlines()[1].split()[-1] == "a.py"
    assert len(json.loads(hunk_here("log", "--all", "--json").stdout)["writes"]) == 2
    assert len(json.loads(hunk_here("log", "--root", tmp_path / "other", "--json").stdout)["writes"]) == 1
    hunk_here("undo")
    shown = hunk_here("log").stdout
    assert "(undone)" in shown
    assert "(undoes " in shown
    assert len(json.loads(hunk_here("log", "-n", "1", "--json").stdout)["writes"]) == 1


def test_a_write_is_found_by_the_beginning_of_its_id(file: Path, history: History) -> None:
    write_by_command(file)
    (write,) = history.list_writes()
    assert history.find(write.id[:5]) == write
    for wrong in ("", "zzz", "../../etc"):
        with pytest.raises(NoSuchWrite):
            history.find(wrong)


def test_what_changes_nothing_or_fails_leaves_no_write(file: Path, history: History) -> None:
    write_by_command(file)
    write_by_command(file)  # nothing to do
    assert len(history.list_writes()) == 1
    with pytest.raises(Stale):
        replace_file(file, b"x", expected_sha256="0" * 64, history=history)
    with pytest.raises(OutsideRoot):
        write_a_file(history, file.parent, "../x.py")
    assert len(history.list_writes()) == 1


def write_a_file(history: History, root: Path, path: str) -> None:
    folder, change = ConfinedFolder(root), FileChange(path, b"x", "")
    with kept.keep_old(history, folder, [(path, b"x")]):
        write_files(folder, [change])


def test_history_0_keeps_nothing(file: Path, history: History, tmp_path: Path) -> None:
    assert hunk_here("apply", file, "-e", "-", "--write", "--history", "0", stdin=EDIT).exit_code == 0
    assert file.read_bytes() == b"LIMIT = 20\r\n"
    assert not (tmp_path / "cache" / "history").exists()
    assert isinstance(hunk_here("undo").exception, NoSuchWrite)


def test_the_folder_and_its_files_are_private(file: Path, tmp_path: Path) -> None:
    write_by_command(file)
    for path in (tmp_path / "cache" / "history").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_removed_link_is_not_kept_and_its_removal_works(root: Path, file: Path, history: History) -> None:
    (root / "link.py").symlink_to("a.py")
    patch = "*** Begin Patch\n*** Delete File: link.py\n*** End Patch\n"
    assert hunk_here("apply", "-e", "-", "--write", stdin=patch).exit_code == 0
    assert not (root / "link.py").is_symlink()
    assert history.list_writes() == []


def test_a_history_that_cannot_be_written_does_not_keep_the_file_from_being_written(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "history").write_text("in its place")
    write_by_command(file)
    assert file.read_bytes() == b"LIMIT = 20\r\n"
    assert "cannot be undone" in caplog.text


def record(history: History, number: int, size: int = 10) -> str:
    before = str(number).encode() * size
    write_id = history.record(Path("/r"), [OldFile("a", before[:size], b"new", 0o644)])
    assert write_id is not None
    return write_id


def test_old_writes_and_those_beyond_the_limit_go_with_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PRUNE_SECONDS", 0.0)
    history = History(tmp_path / "history", 45)
    first, *others = [record(history, number) for number in range(1, 5)]
    assert [write.id for write in history.list_writes()] == [*others[::-1], first]
    record(history, 5)
    assert first not in {write.id for write in history.list_writes()}
    assert sum(path.stat().st_size for path in (tmp_path / "history" / "bytes").iterdir()) <= 45
    later = time.time() + (kept.MAX_DAYS + 1) * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    last = record(history, 6)
    assert [write.id for write in history.list_writes()] == [last]
    assert len(list((tmp_path / "history" / "bytes").iterdir())) == 1


def test_damaged_entries_are_left_out_and_damaged_bytes_not_put_back(file: Path, tmp_path: Path) -> None:
    write_by_command(file)
    folder = tmp_path / "cache" / "history"
    (folder / "0123456789ab.json").write_text("{")
    (folder / "notes.json").write_text("{}")
    assert len(json.loads(hunk_here("log", "--json").stdout)["writes"]) == 1
    for path in (folder / "bytes").iterdir():
        path.write_bytes(b"other")
    assert isinstance(hunk_here("undo").exception, NoSuchWrite)
    assert file.read_bytes() == b"LIMIT = 20\r\n"


STATES = st.dictionaries(st.sampled_from(["a", "b", "d/c"]), st.binary(max_size=20), max_size=3)


@given(before=STATES, after=STATES)
def test_undo_is_the_inverse_of_any_write(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    history, root = History(folder / "history"), folder / "root"
    root.mkdir()
    confined = ConfinedFolder(root)
    make(confined, {}, before)
    changes = [(path, after.get(path)) for path in sorted(before.keys() | after.keys())]
    with kept.keep_old(history, confined, changes) as write_id:
        make(confined, before, after)
    assert snapshot(root) == after
    if write_id is None:
        assert before == after
        return
    redo = undo_write(history, history.find(write_id))
    assert snapshot(root) == before
    undo_write(history, redo)
    assert snapshot(root) == after


def make(root: ConfinedFolder, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    from hashlib import sha256

    changes = [
        FileChange(path, after.get(path), sha256(before[path]).hexdigest() if path in before else "")
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    if changes:
        write_files(root, changes)


def snapshot(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_function_undoes_in_a_folder(file: Path) -> None:
    write_by_function(file)
    assert hunk.undo(root=file.parent).files[0].path == "a.py"
    assert file.read_bytes() == b"LIMIT = 10\r\n"
    with pytest.raises(NoSuchWrite):
        hunk.undo(root=os.sep + "nowhere")


@pytest.mark.parametrize("limit", ["x", "nan", "1e400"])
def test_a_limit_that_is_no_number_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv("HUNK_HISTORY", limit)
    with pytest.raises(BadRequest, match="HUNK_HISTORY"):
        hunk.apply(file, json.loads(EDIT), write=True)
    assert file.read_bytes() == b"LIMIT = 10\r\n"


def test_entries_are_not_all_read_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(tmp_path / "history", 10)
    looks: list[None] = []
    monkeypatch.setattr(History, "_prune", lambda _: looks.append(None))
    for number in range(5):
        record(history, number)
    assert len(looks) == 1
    past = time.time() - kept.PRUNE_SECONDS - 1
    os.utime(tmp_path / "history" / "pruned", (past, past))
    record(history, 6)
    assert len(looks) == 2


def test_what_a_link_that_was_put_there_leads_to_is_not_kept(
    root: Path, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path was resolved, and then somebody puts a link in its place."""
    (tmp_path / "secret").write_text("secret")
    (root / "a.py").symlink_to(tmp_path / "secret")
    confined = ConfinedFolder(root)
    monkeypatch.setattr(confined, "resolve", lambda sent, **_: sent)
    with kept.keep_old(history, confined, [("a.py", b"x")]) as write_id:
        assert write_id is None
    assert not (tmp_path / "cache" / "history").exists()


def test_the_mode_of_what_a_link_leads_to_is_not_set(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret").chmod(0o600)
    (root / "a.py").symlink_to(tmp_path / "secret")
    undo._set_mode(ConfinedFolder(root), "a.py", 0o777)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_versions_take_no_more_than_their_share_of_memory_and_are_of_one_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 1000 + kept.ENTRY_BYTES
    monkeypatch.setattr(kept, "_versions", LRUCache(3 * size, getsizeof=lambda data: len(data) + kept.ENTRY_BYTES))
    one, other = FileVersions(lambda path: path), FileVersions(lambda path: path)
    texts = [bytes([number]) * 1000 for number in range(5)]
    for text in texts:
        one.keep("a.py", text)
    known = [one.find("a.py", sha256(text).hexdigest()) for text in texts]
    assert known == [None, None, *texts[2:]]
    digest = sha256(texts[4]).hexdigest()
    assert (one.find("b.py", digest), other.find("a.py", digest)) == (None, None)
    for number in range(100):
        other.keep(f"{number}.py", b"")
    assert kept._versions.currsize <= 3 * size
