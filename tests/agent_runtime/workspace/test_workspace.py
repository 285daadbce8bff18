"""What a service may read."""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.errors import (
    BadFile,
    BadRequest,
    Conflict,
    FileMissing,
    Forbidden,
    HunkError,
    OutsideRoot,
    TooLarge,
    WorkspaceMissing,
)
from agent_runtime.files import MAX_FILE_BYTES, read_file
from agent_runtime.request_context import ALL_SCOPES, Principal
from agent_runtime.types import Action, FileResult
from agent_runtime.workspace.index import WatchedIndex
from agent_runtime.workspace.registry import DEFAULT, MAX_WORKSPACES, WorkspaceEntry, WorkspaceRegistry
from agent_runtime.workspace.workspace import Workspace
from repo_cache.cache import RepoCache
from tests.models import RealModel


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a = 1\n")
    (root / "inside").symlink_to("src/a.py")
    (root / "outside").symlink_to("../secret.txt")
    (root / "upwards").symlink_to("..")
    return root


@pytest.mark.parametrize("path", ["src/a.py", "./src/../src/a.py", "inside"])
def test_files_below_the_root_are_read(root: Path, path: str) -> None:
    assert Workspace(root).read(path) == b"a = 1\n"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "src/../../secret.txt", "outside", "upwards/secret.txt", "/etc/passwd"]
)
def test_paths_out_of_the_root_are_refused(root: Path, path: str) -> None:
    with pytest.raises(OutsideRoot):
        Workspace(root).read(path)


def test_missing_empty_and_odd_paths_are_refused(root: Path) -> None:
    with pytest.raises(FileMissing):
        Workspace(root).read("src/b.py")
    with pytest.raises(BadFile, match="directory"):
        Workspace(root).read("src")
    for path in ("", "a\0b"):
        with pytest.raises(BadRequest):
            Workspace(root).read(path)


def test_a_root_that_is_no_folder_is_refused(root: Path) -> None:
    with pytest.raises(BadRequest, match="not a folder"):
        Workspace(root / "src" / "a.py")


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(TooLarge, match=r"limit is 8\.4 MB"):
        read_file(path)


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(BadFile, match="regular"):
        read_file(path)


def file_of(path: str, merged: str, action: Action = "update", move_to: str = "", before: str = "") -> FileResult:
    old = sha256(before.encode()).hexdigest() if before else ""
    return FileResult(
        path, "merged", merged, "", "deterministic", "exact", 1, "certain", (), old, "", action=action, move_to=move_to
    )


def test_merged_files_are_written_below_the_root(root: Path) -> None:
    (root / "old.sh").write_text("old\n")
    (root / "old.sh").chmod(0o755)
    Workspace(root).write(
        [
            file_of("src/a.py", "a = 2\n", before="a = 1\n"),
            file_of("old.sh", "old\n", "move", "bin/new.sh", "old\n"),
            file_of("docs/new.md", "# New\n", "create"),
        ]
    )
    assert (root / "src" / "a.py").read_text() == "a = 2\n"
    assert not (root / "old.sh").exists()
    assert (root / "bin" / "new.sh").stat().st_mode & 0o777 == 0o755
    assert (root / "docs" / "new.md").read_text() == "# New\n"


def test_two_files_change_places(root: Path) -> None:
    (root / "1").write_text("one")
    (root / "2").write_text("two")
    Workspace(root).write([file_of("1", "one", "move", "2", "one"), file_of("2", "two", "move", "1", "two")])
    assert ((root / "1").read_text(), (root / "2").read_text()) == ("two", "one")


def test_a_link_is_deleted_and_its_target_stays(root: Path) -> None:
    Workspace(root).write([file_of("inside", "", "delete", before="a = 1\n")])
    assert not (root / "inside").is_symlink()
    assert (root / "src" / "a.py").exists()


@pytest.mark.parametrize("path", ["../new.py", "upwards/new.py", "outside", "/tmp/new.py"])
def test_nothing_is_written_out_of_the_root(root: Path, path: str) -> None:
    with pytest.raises(OutsideRoot):
        Workspace(root).write([file_of("new.py", "x", "create"), file_of(path, "x", "create")])
    assert not (root / "new.py").exists()
    assert (root.parent / "secret.txt").read_text() == "secret"


def test_links_that_lead_in_a_circle_are_refused(root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    with pytest.raises(BadFile):
        Workspace(root).read("x")


# Folders are registered with the scope `admin`, below allowed roots, and seen by their tenant only.


ANN = Principal("ann", ALL_SCOPES)
BOB = Principal("bob", ALL_SCOPES)
TEXT = "def f():\n    return 1\n"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("root", "allowed/a", "allowed/a/inner", "allowed/b", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def workspaces(base: Path) -> WorkspaceRegistry:
    return WorkspaceRegistry(base / "root", allowed=[base / "allowed"])


def names(workspaces: WorkspaceRegistry, principal: Principal) -> list[str]:
    return [entry.name for entry in workspaces.list_visible(principal)]


def test_a_tenant_sees_its_own_and_the_default(workspaces: WorkspaceRegistry, base: Path) -> None:
    entry, is_new = workspaces.register(str(base / "allowed/a"), "shop", ANN)
    assert (entry.name, entry.workspace.root, is_new) == ("shop", base / "allowed/a", True)
    assert workspaces.get("shop", ANN).root == base / "allowed/a"
    with pytest.raises(WorkspaceMissing):
        workspaces.get("shop", BOB)
    workspaces.register(str(base / "allowed/b"), "shop", BOB)
    assert workspaces.get("shop", BOB).root == base / "allowed/b", "names are a tenant's own"
    assert names(workspaces, ANN) == names(workspaces, BOB) == [DEFAULT, "shop"]
    for principal in (ANN, BOB):
        assert workspaces.get(None, principal).root == workspaces.get(DEFAULT, principal).root == base / "root"


def test_without_a_root_there_is_no_default(base: Path) -> None:
    workspaces = WorkspaceRegistry(allowed=[base / "allowed"])
    assert workspaces.find(None, ANN) is None
    assert not workspaces.has_default
    with pytest.raises(OutsideRoot, match="--root"):
        workspaces.get(None, ANN)
    with pytest.raises(WorkspaceMissing):
        workspaces.get(DEFAULT, ANN)
    with pytest.raises(Conflict):
        workspaces.register(str(base / "allowed/a"), DEFAULT, ANN)


def test_the_name_is_the_folder_s_where_none_is_given(workspaces: WorkspaceRegistry, base: Path) -> None:
    (base / "allowed" / "my shop.v2").mkdir()
    entry, _ = workspaces.register(str(base / "allowed" / "my shop.v2"), principal=ANN)
    assert entry.name == "my-shop.v2"


def test_again_the_same_is_no_fault(workspaces: WorkspaceRegistry, base: Path) -> None:
    first, _ = workspaces.register(str(base / "allowed/a"), "shop", ANN)
    again, is_new = workspaces.register(str(base / "allowed/./a/inner/.."), "shop", ANN)
    assert again is first
    assert not is_new
    with pytest.raises(Conflict, match="another folder"):
        workspaces.register(str(base / "allowed/b"), "shop", ANN)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "-x", "a b", "x" * 65, "ä", "a\n"])
def test_names_that_cannot_stand_in_a_url_are_refused(workspaces: WorkspaceRegistry, base: Path, name: str) -> None:
    with pytest.raises(BadRequest) as refused:
        workspaces.register(str(base / "allowed/a"), name, ANN)
    assert refused.value.field == "name"
    assert names(workspaces, ANN) == [DEFAULT]


def test_only_folders_that_are_allowed_are_registered(workspaces: WorkspaceRegistry, base: Path) -> None:
    (base / "allowed/way-out").symlink_to(base / "elsewhere")
    (base / "allowed/round").symlink_to(base / "allowed/round")
    (base / "allowed/file").write_text("x")
    (base / "way-in").symlink_to(base / "allowed/a")
    refused: list[tuple[str, type[HunkError]]] = [
        (str(base / "elsewhere"), OutsideRoot),
        (str(base), OutsideRoot),
        (str(base / "allowed/../elsewhere"), OutsideRoot),
        (str(base / "allowed/way-out"), OutsideRoot),
        (f"{base}/allowedness", OutsideRoot),
        ("allowed/a", BadRequest),
        (f"{base}/allowed/a\0", BadRequest),
        (str(base / "allowed/none"), BadRequest),
        (str(base / "allowed/file"), BadRequest),
        (str(base / "allowed/round"), BadRequest),
    ]
    for root, fault in refused:
        with pytest.raises(fault):
            workspaces.register(root, "shop", ANN)
    assert names(workspaces, ANN) == [DEFAULT]
    assert workspaces.register(str(base / "way-in"), "shop", ANN)[0].workspace.root == base / "allowed/a"
    (base / "root/below").mkdir()
    workspaces.register(str(base / "root/below"), "below", ANN)


@pytest.mark.parametrize("root", ["allowed/a", "allowed/a/inner", "allowed"])
def test_another_tenant_s_folder_is_not_to_be_had(workspaces: WorkspaceRegistry, base: Path, root: str) -> None:
    workspaces.register(str(base / "allowed/a"), "shop", ANN)
    with pytest.raises(OutsideRoot, match="not to be had"):
        workspaces.register(str(base / root), "mine", BOB)
    workspaces.register(str(base / root), "mine", ANN)


def test_it_takes_the_scope_admin(workspaces: WorkspaceRegistry, base: Path) -> None:
    reader = Principal("ann", frozenset({"apply", "read"}))
    with pytest.raises(Forbidden):
        workspaces.register(str(base / "allowed/a"), "shop", reader)
    workspaces.register(str(base / "allowed/a"), "shop", ANN)
    with pytest.raises(Forbidden):
        workspaces.remove("shop", reader)
    assert workspaces.get("shop", reader).root == base / "allowed/a"


def test_what_is_removed_is_gone_and_others_are_told(workspaces: WorkspaceRegistry, base: Path) -> None:
    told: list[WorkspaceEntry] = []
    workspaces.add_remove_listener(told.append)
    entry, _ = workspaces.register(str(base / "allowed/a"), "shop", ANN)
    with pytest.raises(WorkspaceMissing):
        workspaces.remove("shop", BOB)
    with pytest.raises(Conflict, match="stays"):
        workspaces.remove(DEFAULT, ANN)
    workspaces.remove("shop", ANN)
    assert told == [entry]
    with pytest.raises(WorkspaceMissing):
        workspaces.remove("shop", ANN)
    assert (base / "allowed/a").is_dir()
    workspaces.register(str(base / "allowed/a"), "mine", BOB)


def test_a_tenant_has_only_so_many(workspaces: WorkspaceRegistry, base: Path) -> None:
    for number in range(MAX_WORKSPACES):
        workspaces.register(str(base / "allowed/a"), f"shop-{number}", ANN)
    with pytest.raises(Conflict, match="remove one first"):
        workspaces.register(str(base / "allowed/a"), "one-more", ANN)
    workspaces.register(str(base / "allowed/b"), "one-more", BOB)


def test_tokens_are_those_of_the_workspace_that_is_asked_for(
    workspaces: WorkspaceRegistry, base: Path, smollm2: RealModel
) -> None:
    other = TEXT.replace("1", "2")
    (base / "root/a.py").write_text(TEXT)
    (base / "allowed/a/a.py").write_text(other)
    entry, _ = workspaces.register(str(base / "allowed/a"), "shop", ANN)
    default = workspaces.get_entry()
    assert entry.index is None, "there is no tokenizer yet"
    assert workspaces.find_tokens("a.py", TEXT) is None
    workspaces.set_tokenizer(smollm2.tokenizer)
    late, _ = workspaces.register(str(base / "allowed/b"), "late", ANN)
    try:
        for each in (entry, default, late):
            assert each.index is not None
            assert each.index.state == "idle"
            assert each.index.wait(60)
            assert each.index.state == "watching"
        found = workspaces.find_tokens("a.py", TEXT)
        assert found is not None
        assert found.token_ids.tolist() == smollm2.tokenizer.encode(TEXT)
        assert workspaces.find_tokens("a.py", TEXT, str(base / "root")) is found
        assert workspaces.find_tokens("a.py", TEXT, str(base / "allowed/a")) is None, "there it reads otherwise"
        assert workspaces.find_tokens("a.py", other) is None
        assert workspaces.find_tokens("a.py", other, str(base / "allowed/a")) is not None
        assert workspaces.find_tokens("a.py", TEXT, str(base / "elsewhere")) is None
        assert default.index is not None
        assert default.index.find_tokens("a.py", TEXT, str(base / "root")) is found
        assert default.index.find_tokens("a.py", TEXT, str(base / "elsewhere")) is None, "that is another folder"
    finally:
        workspaces.close()
    assert default.index is not None
    assert default.index.state == "closed"


def test_unwatched_folders_have_no_tokens(base: Path, smollm2: RealModel) -> None:
    workspaces = WorkspaceRegistry(base / "root", watch=False)
    workspaces.set_tokenizer(smollm2.tokenizer)
    entry = workspaces.get_entry()
    assert entry.index is None
    assert "--no-watch" in entry.unavailable_reason


# Tokens of a watched folder are used only for exactly the same text, and without waiting.


@pytest.fixture
def index_root(tmp_path: Path) -> Path:
    index_root = tmp_path / "project"
    (index_root / "src").mkdir(parents=True)
    (index_root / "src" / "a.py").write_text(TEXT)
    (index_root / "crlf.py").write_bytes(TEXT.replace("\n", "\r\n").encode())
    (index_root / "bom.py").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    return index_root


def test_a_file_is_known_by_path_and_content(index_root: Path, smollm2: RealModel, tmp_path: Path) -> None:
    files = WatchedIndex(index_root, smollm2.tokenizer, tmp_path / "store", pytest.fail)
    assert files.wait(60)
    found = files.find_tokens("src/a.py", TEXT)
    assert found is not None
    assert found.token_ids.tolist() == smollm2.tokenizer.encode(TEXT)
    assert files.find_tokens("./src/a.py", TEXT) is found
    assert files.find_tokens("src/a.py", TEXT + "\n") is None, "the file has another text by now"
    assert files.find_tokens("a.py", TEXT) is None
    assert files.find_tokens("", TEXT) is None
    for path in ("crlf.py", "bom.py"):
        assert files.find_tokens(path, TEXT) is None, "its tokens are those of its bytes"
    files.close()
    assert files.find_tokens("src/a.py", TEXT) is None
    files.close()


def test_the_folder_is_indexed_once_it_is_asked_about_and_nobody_waits(
    index_root: Path, smollm2: RealModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on, done = threading.Event(), threading.Event(), threading.Event()
    real = RepoCache.open

    def slowly(*arguments: object, **options: object) -> RepoCache:
        opened.set()
        assert go_on.wait(60)
        made = real(index_root, smollm2.tokenizer)
        monkeypatch.setattr(made, "close", lambda: (RepoCache.close(made), done.set()))
        return made

    monkeypatch.setattr("agent_runtime.workspace.index.RepoCache.open", slowly)
    files = WatchedIndex(index_root, smollm2.tokenizer)
    assert not opened.is_set()
    assert files.find_tokens("src/a.py", TEXT) is None
    assert opened.wait(60)
    assert files.find_tokens("src/a.py", TEXT) is None
    files.close()
    go_on.set()
    assert not files.wait(60)
    assert done.wait(60), "what comes too late is closed"


def test_a_folder_that_cannot_be_watched_is_told_once_and_stops_nobody(tmp_path: Path, smollm2: RealModel) -> None:
    said: list[str] = []
    files = WatchedIndex(tmp_path / "none", smollm2.tokenizer, report=said.append)
    assert not files.wait(60)
    assert files.find_tokens("a.py", TEXT) is None
    assert files.find_tokens("a.py", TEXT) is None
    (line,) = said
    assert "is not watched" in line
    files.close()
