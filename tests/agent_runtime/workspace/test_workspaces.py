"""Folders are registered by those who may, below what is allowed, and seen by those whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runtime.access import ALL_SCOPES, Principal
from agent_runtime.errors import BadRequest, Conflict, Forbidden, HunkError, OutsideRoot, WorkspaceMissing
from agent_runtime.workspace.registry import DEFAULT, MAX_WORKSPACES, WorkspaceEntry, WorkspaceRegistry
from tests.models import RealModel

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
