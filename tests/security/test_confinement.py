"""No path leads out of a workspace, neither by its text nor by links and renames while it is used."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.errors import BadFile, BadRequest, FileMissing, HunkError, OutsideRoot, Stale
from agent_runtime.workspace import sandbox
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.workspace import FileChange, Workspace, write_files
from tests.security.guarded import Guarded, guarded

MOST_SECONDS = 30.0
"""Of a race in which the other process gets no turn; on a machine that does other things, too."""

SECRET = "the secret outside\n"
INSIDE = "inside = 1\n"
EDIT = '{"old_string": "inside = 1", "new_string": "inside = 2"}'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with links, and a secret beside it."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file.py").write_text(INSIDE)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file.py").write_text(SECRET)
    (root / "link").symlink_to("sub/file.py")
    (root / "absolute").symlink_to(root / "sub" / "file.py")
    (root / "folder").symlink_to("sub")
    (root / "out").symlink_to("../outside/file.py")
    (root / "out-folder").symlink_to("../outside")
    (root / "out-and-in").symlink_to("../root/sub/file.py")
    (root / "proc").symlink_to("/proc/self/root")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text(SECRET)
    (root / "to-git").symlink_to(".git")
    return root


OUT = [
    "../outside/file.py",
    "sub/../../outside/file.py",
    "sub/../../root/../outside/file.py",
    "/etc/passwd",
    "//etc/passwd",
    "out",
    "out-folder/file.py",
    "out-folder/../outside/file.py",
    "folder/../../outside/file.py",
    "proc/etc/passwd",
    "proc/../../etc/passwd",
    "/proc/self/environ",
    "/dev/null",
    ".git/config",
    ".GIT/config",
    "sub/../.git/config",
    "to-git/config",
    "..",
]

NOWHERE = [
    "..\\outside\\file.py",
    "sub\\..\\..\\outside\\file.py",
    "C:\\Windows\\win.ini",
    "\\\\server\\share",
    "file:///etc/passwd",
    "%2e%2e/outside/file.py",
    "..%2foutside%2ffile.py",
    "．．/outside/file.py",
    "‥/outside/file.py",
    "..\u2215outside\u2215file.py",
    "..\u200b/outside/file.py",
    "~/.ssh/id_rsa",
    "$HOME/x",
    "sub/file.py::$DATA",
    "x" * 300,
    "x/" * 3000,
    "file.py ",
    "\u202efile",
]


@pytest.mark.parametrize("path", ["sub/file.py", "./sub//file.py", "link", "absolute", "folder/file.py", "out-and-in"])
def test_what_ends_inside_is_read_whichever_way_it_goes(root: Path, path: str) -> None:
    assert Workspace(root).read(path).decode() == INSIDE


@pytest.mark.parametrize("path", OUT)
def test_what_leads_out_is_neither_read_nor_written(root: Path, path: str) -> None:
    before = tree(root.parent)
    with pytest.raises(OutsideRoot):
        Workspace(root).read(path)
    for data, expected in ((b"x", ""), (b"x", sha256(SECRET.encode()).hexdigest()), (None, digest_of(SECRET))):
        with pytest.raises(OutsideRoot):
            write_files(ConfinedFolder(root), [FileChange(path, data, expected)])
    assert tree(root.parent) == before


@pytest.mark.parametrize(
    "name",
    [".g\u200cit", ".git\u200d", "\ufeff.GIT", ".gi\u2064t", ".git.", ".git ", "GIT~1", ".git::$INDEX_ALLOCATION"],
)
def test_what_some_file_system_takes_for_gits_folder_is_outside(root: Path, name: str) -> None:
    """HFS+ and ext4 with case folding leave out ignorable characters, FAT and NTFS have short names and cut ends."""
    before = tree(root.parent)
    with pytest.raises(OutsideRoot):
        Workspace(root).read(f"{name}/config")
    with pytest.raises(OutsideRoot):
        write_files(ConfinedFolder(root), [FileChange(f"sub/{name}/config", b"x", "")])
    assert tree(root.parent) == before


@pytest.mark.parametrize("path", ["sub/.github/x", "sub/.gitignore", "sub/git", "sub/.\u00e9git", "sub/.g\u0131t"])
def test_names_that_only_look_like_gits_are_written(root: Path, path: str) -> None:
    write_files(ConfinedFolder(root), [FileChange(path, b"x", "")])
    assert Workspace(root).read(path) == b"x"


@pytest.mark.parametrize("last", ["HEAD", "objects/x", "refs/x", "Head"])
def test_no_folder_becomes_a_bare_repository(root: Path, last: str) -> None:
    """Git runs what the `config` of one says, whatever the folder is called."""
    wanted = ["config", "HEAD", "objects/x", "refs/x"]
    others = [path for path in wanted if path.lower() != last.lower()]
    for path in others:
        write_files(ConfinedFolder(root), [FileChange(f"sub/x/{path}", b"x", "")])
    before = tree(root.parent)
    with pytest.raises(OutsideRoot, match="git"):
        write_files(ConfinedFolder(root), [FileChange(f"sub/x/{last}", b"x", "")])
    with pytest.raises(OutsideRoot, match="git"):
        write_files(ConfinedFolder(root), [FileChange(f"sub/y/{path}", b"x", "") for path in [*others, last]])
    with pytest.raises(OutsideRoot, match="git"):
        write_files(ConfinedFolder(root), [FileChange("HEAD", b"x", ""), FileChange("commondir", b"x", "")])
    assert tree(root.parent) == before


def test_a_bare_repository_is_not_written_in(root: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(root / "x")], check=True)
    before = tree(root.parent)
    config = sha256((root / "x" / "config").read_bytes()).hexdigest()
    for change in (
        FileChange("x/config", b"x", config),
        FileChange("x/hooks/pre-commit", b"x", ""),
        FileChange("x/new", b"x", ""),
    ):
        with pytest.raises(OutsideRoot, match="git"):
            write_files(ConfinedFolder(root), [change])
    assert tree(root.parent) == before


@pytest.mark.parametrize("path", ["x/" * 128 + "y", "x" * 256, "\u00e9" * 128 + "/y", "/".join(["x" * 250] * 17)])
def test_no_path_is_so_long_that_it_could_not_be_removed(root: Path, path: str) -> None:
    before = tree(root.parent)
    with pytest.raises(BadFile, match=r"the limits? (are|is)|more than"):
        write_files(ConfinedFolder(root), [FileChange(path, b"x", "")])
    assert tree(root.parent) == before


def test_a_deep_path_is_looked_at_level_by_level(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, num_opened = os.open, 0

    def count(*arguments: Any, **options: Any) -> int:
        nonlocal num_opened
        num_opened += 1
        return opened(*arguments, **options)

    monkeypatch.setattr(os, "open", count)
    assert len(ConfinedFolder(root).find_missing_folders("x/" * 100 + "y")) == 100
    (root / ("x/" * 100)).mkdir(parents=True)
    assert ConfinedFolder(root).find_missing_folders("x/" * 100 + "y") == []
    assert num_opened <= 110


@pytest.mark.parametrize("path", NOWHERE)
def test_what_only_looks_as_if_it_led_out_is_a_name_that_is_not_there(root: Path, path: str) -> None:
    with pytest.raises((FileMissing, BadFile)):
        Workspace(root).read(path)


@pytest.mark.parametrize("path", ["", "\0", "sub/file.py\0.txt", "sub\0/../../outside/file.py"])
def test_empty_paths_and_nul_are_refused(root: Path, path: str) -> None:
    with pytest.raises(BadRequest):
        Workspace(root).read(path)
    with pytest.raises(BadRequest):
        write_files(ConfinedFolder(root), [FileChange(path, b"x", "")])


def test_what_is_no_file_is_neither_read_nor_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "to-pipe").symlink_to("pipe")
    for path in ("pipe", "to-pipe", "sub", "folder", "."):
        with pytest.raises(BadFile):
            Workspace(root).read(path)


@pytest.fixture
def service(root: Path, tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path, root) as running:
        yield running


def test_over_http_nothing_outside_is_read_written_or_told(service: Guarded, root: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    create = "*** Begin Patch\n*** Add File: {}\n+x\n*** End Patch\n"
    for path in [*OUT, *NOWHERE, "\0", ""]:
        bodies = [{"path": path, "edit": EDIT}, {"path": path, "edit": EDIT, "write": True}]
        if path in OUT and path != "..":
            bodies.append({"edit": create.format(path), "write": True})
        for body in bodies:
            response = service.ask("POST", "/apply", json=body)
            assert response.status_code in (400, 403, 404, 422), (path, response.text)
            assert SECRET.strip() not in response.text
            assert "root:" not in response.text
            assert str(tmp_path) not in response.text
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "path", ["..%2f..%2foutside%2ffile.py", "%2e%2e/outside/file.py", "..%252foutside", ".git/config"]
)
def test_encoded_paths_in_urls_lead_nowhere(service: Guarded, path: str) -> None:
    for url in (f"/workspaces/default/files/{path}", f"/static/{path}", f"/workspaces/{path}"):
        response = service.ask("GET", url)
        assert response.status_code in (400, 403, 404, 422)
        assert SECRET.strip() not in response.text


def test_a_hook_of_git_is_never_written(service: Guarded, root: Path) -> None:
    patch = "*** Begin Patch\n*** Add File: .git/hooks/pre-commit\n+#!/bin/sh\n*** End Patch\n"
    response = service.ask("POST", "/apply", json={"edit": patch, "write": True})
    assert response.status_code == 403
    assert not (root / ".git" / "hooks").exists()


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def tree(folder: Path) -> dict[str, str]:
    """All that is there, links as what they say."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path)] = path.read_text()
    return found


@contextlib.contextmanager
def swapped(name: Path, instead: Path) -> Iterator[None]:
    """Another process swaps the two meanwhile."""
    program = [sys.executable, "-I", str(Path(__file__).with_name("swapping.py")), str(name), str(instead)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def race(seconds: float, act: Callable[[], object], *, until_met: bool = False) -> Counter[str]:
    """What comes of doing something again and again; with `until_met`, until it failed and did not fail."""
    seen: Counter[str] = Counter()
    now = time.monotonic()
    until, at_last = now + seconds, now + MOST_SECONDS
    while (now := time.monotonic()) < until or (until_met and now < at_last and not 0 < seen["done"] < seen.total()):
        try:
            act()
            seen["done"] += 1
        except HunkError as fault:
            seen[type(fault).__name__] += 1
    return seen


@pytest.mark.parametrize(
    ("what", "seconds"),
    [
        ("folder", 0.4),
        ("file", 0.4),
        pytest.param("folder", 20, marks=pytest.mark.e2e),
        pytest.param("file", 20, marks=pytest.mark.e2e),
    ],
)
def test_while_links_are_swapped_in_nothing_outside_is_read_or_written(root: Path, what: str, seconds: float) -> None:
    """A second process turns a folder, or the file itself, into a link that leads out and back as fast as it can."""
    name = root / "sub" if what == "folder" else root / "sub" / "file.py"
    link = name.with_name("away")
    link.symlink_to(root.parent / "outside" / ("" if what == "folder" else "file.py"))
    outside = tree(root.parent / "outside")
    files = ConfinedFolder(root)
    number = 0

    def read() -> None:
        assert files.read("sub/file.py").decode().startswith("inside")

    def write() -> None:
        nonlocal number
        number += 1
        current = files.read("sub/file.py")
        new = f"inside = {number}\n".encode()
        write_files(
            files, [FileChange("sub/file.py", new, sha256(current).hexdigest()), FileChange("sub/new.py", new, "")]
        )

    def create() -> None:
        write_files(files, [FileChange(f"sub/made-{time.monotonic_ns()}/x.py", b"x", "")])

    with swapped(name, link):
        seen = [race(seconds / 3, read, until_met=True), race(seconds / 3, write), race(seconds / 3, create)]
    assert tree(root.parent / "outside") == outside, seen
    assert 0 < seen[0]["done"] < seen[0].total(), f"the swaps were never met, or never missed: {seen}"


def test_the_race_is_lost_by_looking_first_and_opening_the_path_then(root: Path) -> None:
    """What the test above guards against is real: this is how it was done before."""
    link = root / "away"
    link.symlink_to(root.parent / "outside")

    def naive() -> bytes:
        located = (root / "sub/file.py").resolve()
        if not located.is_relative_to(root):
            raise OutsideRoot("out")
        return located.read_bytes()

    stolen = False
    with swapped(root / "sub", link):
        until = time.monotonic() + 20
        while not stolen and time.monotonic() < until:
            with contextlib.suppress(OSError, HunkError, RuntimeError):
                stolen = naive().decode() == SECRET
    assert stolen


def test_a_folder_that_becomes_a_link_between_look_and_opening_is_met_as_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race, played: no luck is needed."""
    opened = sandbox.open_below

    def swapping(*arguments: object) -> int:
        if not (root / "sub").is_symlink():
            (root / "sub").rename(root / "aside")
            (root / "sub").symlink_to("../outside")
        return opened(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sandbox, "open_below", swapping)
    with pytest.raises(OutsideRoot):
        ConfinedFolder(root).read("sub/file.py")


def test_a_file_that_becomes_a_link_between_look_and_opening_is_met_as_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = sandbox.check_regular

    def swapping(*arguments: object) -> None:
        looked(*arguments)  # type: ignore[arg-type]
        (root / "sub" / "file.py").rename(root / "aside")
        (root / "sub" / "file.py").symlink_to("../../outside/file.py")

    monkeypatch.setattr(sandbox, "check_regular", swapping)
    with pytest.raises(OutsideRoot):
        ConfinedFolder(root).read("sub/file.py")


def test_links_that_change_at_every_look_are_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def always_a_link(*_: object) -> int:
        raise OSError(40, "Too many levels of symbolic links")

    monkeypatch.setattr(sandbox, "open_below", always_a_link)
    with pytest.raises(BadFile, match="levels of symbolic links"):
        ConfinedFolder(root).read("sub/file.py")


def test_a_file_that_grows_while_it_is_read_is_cut_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size that counts is of what is read."""
    with pytest.raises(BadFile):
        ConfinedFolder(Path("/proc/self")).read("nothing-there")
    assert ConfinedFolder(Path("/proc/self")).read("status").startswith(b"Name:")  # says that it has 0 bytes


def test_a_stale_hash_is_told_with_that_of_now(root: Path) -> None:
    with pytest.raises(Stale) as stale:
        write_files(ConfinedFolder(root), [FileChange("link", b"x", digest_of("other"))])
    assert stale.value.current_sha256 == digest_of(INSIDE)
