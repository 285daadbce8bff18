"""Files below a root: each is read or named with a reason, and a scan holds what git does not ignore."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from repo_cache import files
from repo_cache import scan as scanning
from repo_cache.database import Database
from repo_cache.files import (
    FileContent,
    FileStat,
    Skipped,
    SkipReason,
    is_settled,
    make_private,
    make_private_file,
    open_below,
    read_file,
    to_file_stat,
)
from repo_cache.ignore import IgnoreRules
from repo_cache.scan import Scan, scan, scan_paths

# Reading never leaves the root; cache folders are private.


def reason(root: Path, path: str) -> SkipReason:
    found = read_file(root, path, max_file_bytes=1000)
    assert isinstance(found, Skipped)
    assert found.path == path
    return found.reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside.txt").write_text("outside")
    return tmp_path / "root"


def test_a_text_file_is_read_with_its_stat(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/é.py").write_bytes("x = 'é'\r\n".encode())
    found = read_file(root, "a/é.py")
    assert isinstance(found, FileContent)
    assert found.data == "x = 'é'\r\n".encode()
    assert found.stat == files.to_file_stat((root / "a/é.py").stat())
    assert not found.settled


def test_an_old_file_is_settled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_text("x")
    later = time.time_ns() + 10_000_000_000
    monkeypatch.setattr(files.time, "time_ns", lambda: later)
    found = read_file(root, "a")
    assert isinstance(found, FileContent)
    assert found.settled


def test_a_stat_vouches_only_when_later_writes_would_show(root: Path) -> None:
    written = 5_000_000_000
    stat = FileStat(size=1, mtime_ns=written, ctime_ns=0, inode=1)
    assert not is_settled(stat, looked_at_ns=written)
    assert not is_settled(stat, looked_at_ns=written + 2_000_000_000)  # the clock step of FAT
    assert is_settled(stat, looked_at_ns=written + 3_000_000_000)
    assert not is_settled(stat._replace(ctime_ns=written + 1_000_000_000), looked_at_ns=written + 3_000_000_000)
    assert not is_settled(stat._replace(mtime_ns=2 * written), looked_at_ns=written + 3_000_000_000)


def test_each_kind_of_file_that_is_not_text_has_its_reason(root: Path) -> None:
    (root / "nul").write_bytes(b"text" * 10 + b"\0")
    (root / "latin").write_bytes("é".encode("latin-1"))
    (root / "large").write_bytes(b"x" * 1001)
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    assert reason(root, "nul") == SkipReason.BINARY
    assert reason(root, "latin") == SkipReason.NOT_UTF8
    assert reason(root, "large") == SkipReason.TOO_LARGE
    assert reason(root, "missing") == reason(root, "missing/x") == reason(root, "large/x") == SkipReason.GONE
    assert reason(root, "folder") == reason(root, "pipe") == reason(root, "socket") == SkipReason.SPECIAL


def test_a_nul_far_into_a_file_is_text_as_it_is_for_git(root: Path) -> None:
    data = b"x" * files.NUM_BINARY_BYTES + b"\0"
    (root / "a").write_bytes(data)
    found = read_file(root, "a")
    assert isinstance(found, FileContent)
    assert found.data == data


@pytest.mark.parametrize("path", ["../outside.txt", "a/../../outside.txt", "/etc/passwd", "", ".", "a//b", "./a"])
def test_paths_that_are_not_below_the_root_are_refused(root: Path, path: str) -> None:
    assert isinstance(read_file(root, path), Skipped)


def test_links_are_followed_to_files_of_the_workspace_only(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/x").write_text("inside")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("secret")
    targets = {"in": "a/x", "chain": "in", "up": "../outside.txt", "git": ".git/config", "self": "self", "none": "no"}
    for name, target in {**targets, "folder": "a", "away": ".."}.items():
        (root / name).symlink_to(target)
    for name in ["in", "chain"]:
        found = read_file(root, name)
        assert isinstance(found, FileContent)
        assert found.data == b"inside"
        assert found.stat == files.to_file_stat((root / "a/x").stat())
    assert reason(root, "up") == reason(root, "git") == SkipReason.OUTSIDE
    assert reason(root, "self") == reason(root, "none") == SkipReason.GONE
    assert reason(root, "folder/x") == reason(root, "away/outside.txt") == SkipReason.GONE


def test_a_folder_that_becomes_a_link_while_a_path_is_opened_leads_nowhere(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").mkdir()
    open_ = os.open

    def swapping(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "a":
            (root / "a").rmdir()
            (root / "a").symlink_to("..")
        return open_(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(files.os, "open", swapping)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        open_below(root, "a/outside.txt", os.O_RDONLY)


def test_a_file_without_the_right_to_read_it_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_text("x")
    if os.geteuid() == 0:  # no file is closed to root: the system's answer is played
        open_ = os.open

        def refusing(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
            if path == "a":
                raise PermissionError(13, "Permission denied")
            return open_(path, flags, dir_fd=dir_fd)

        monkeypatch.setattr(files.os, "open", refusing)
    (root / "a").chmod(0)
    assert reason(root, "a") == SkipReason.UNREADABLE


def test_a_file_that_changes_while_it_is_read_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_text("old")
    bytes_of, texts = files._read_bytes, ["newer", "newest"]

    def writing(descriptor: int, max_bytes: int) -> bytes:
        data = bytes_of(descriptor, max_bytes)
        if texts:
            (root / "a").write_text(texts.pop(0))
        return data

    monkeypatch.setattr(files, "_read_bytes", writing)
    found = read_file(root, "a")
    assert isinstance(found, FileContent)
    assert found.data == b"newest"
    texts.extend(["1", "22", "333", "4444"])
    assert reason(root, "a") == SkipReason.UNSTEADY


def test_what_is_read_beside_a_writer_is_never_torn(root: Path) -> None:
    texts = [b"a" * 5000, b"b" * 7000, b"c" * 6000]
    path, done = root / "x", threading.Event()
    path.write_bytes(texts[0])

    def write() -> None:
        while not done.is_set():
            for text in texts:
                path.write_bytes(text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [read_file(root, "x") for _ in range(300)]
    finally:
        done.set()
        writer.join()
    read = [content.data for content in found if isinstance(content, FileContent)]
    assert all(any(text.startswith(data) for text in texts) for data in read)  # half written is a state of the file


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_folders_are_made_for_their_owner_and_closed_where_they_are_open(tmp_path: Path) -> None:
    make_private(tmp_path / "cache" / "tokens")
    assert mode_of(tmp_path / "cache") == mode_of(tmp_path / "cache" / "tokens") == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    make_private(tmp_path / "open")
    assert mode_of(tmp_path / "open") == 0o700


def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        make_private(tmp_path)
    with pytest.raises(PermissionError, match="another user"):
        make_private_file(tmp_path / "file")


def test_a_private_file_is_no_link_and_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"symbolic|regular"):
            make_private_file(tmp_path / name)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("was_open", [False, True])
def test_the_token_store_is_its_owners_alone(tmp_path: Path, was_open: bool) -> None:
    path = tmp_path / "tokens" / "tokens.sqlite3"
    if was_open:
        path.parent.mkdir(mode=0o755)
        path.touch(mode=0o644)
    before = os.umask(0)
    try:
        database = Database(path, print)
        assert {mode_of(each) for each in path.parent.iterdir()} == {0o600}
        assert len(list(path.parent.iterdir())) == 3
        assert mode_of(path.parent) == 0o700
        database.close()
    finally:
        os.umask(before)


def test_a_store_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    said: list[str] = []
    assert not Database(tmp_path / "tokens" / "tokens.sqlite3", said.append).is_usable
    assert "another user" in said[0]


# A scan names what it skips, and agrees with git and with the scan of single paths.


def scanned(root: Path, below: str = "", max_file_bytes: int = 1000) -> Scan:
    return scan(root, IgnoreRules(root), below=below, max_file_bytes=max_file_bytes)


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def test_files_come_with_the_stat_that_reading_gives(tmp_path: Path) -> None:
    write(tmp_path, "a", "b/c", "b/d/e")
    before = time.time_ns()
    found = scanned(tmp_path)
    assert set(found.files) == {"a", "b/c", "b/d/e"}
    assert before <= found.started_ns <= time.time_ns()
    for path, stat in found.files.items():
        content = read_file(tmp_path, path)
        assert isinstance(content, FileContent)
        assert content.stat == stat == to_file_stat((tmp_path / path).stat())


def test_ignored_paths_are_not_entered(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", "a.py", "a.log", ".git/config", "sub/.git/config", "node_modules/x/y.js", "sub/b.py")
    (tmp_path / ".gitignore").write_text("*.log\nnode_modules/\n")
    found = scanned(tmp_path)
    assert set(found.files) == {".gitignore", "a.py", "sub/b.py"}
    assert not found.skipped


def test_one_folder_can_be_scanned_and_rules_are_read_anew(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "a/y", "a/b/x", "x")
    rules = IgnoreRules(tmp_path)
    assert set(scan(tmp_path, rules, below="a").files) == {"a/x", "a/y", "a/b/x"}
    (tmp_path / "a/.gitignore").write_text("x\n")
    assert set(scan(tmp_path, rules, below="a").files) == {"a/.gitignore", "a/y"}
    (tmp_path / ".gitignore").write_text("a\n")
    assert set(scan(tmp_path, rules).files) == {".gitignore", "x"}
    assert not scan(tmp_path, rules, below="a").files
    assert not scan(tmp_path, rules, below="gone/too").files


def test_what_is_skipped_is_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "ok", "large")
    write(tmp_path, "outside")
    (root / "large").write_bytes(b"x" * 1001)
    os.mkfifo(root / "pipe")
    (root / "away").symlink_to("../outside")
    (root / "dangling").symlink_to("nothing")
    (root / os.fsdecode(b"caf\xe9")).write_text("x")
    found = scanned(root)
    assert set(found.files) == {"ok"}
    assert {skipped.path: skipped.reason for skipped in found.skipped} == {
        "large": SkipReason.TOO_LARGE,
        "pipe": SkipReason.SPECIAL,
        "away": SkipReason.OUTSIDE,
        "caf\\xe9": SkipReason.NAME,
    }


def test_links_to_folders_are_not_followed_and_those_to_files_inside_the_workspace_are(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "made")
    (tmp_path / ".gitignore").write_text("made\n")
    for name, target in {"link": "a/x", "folder": "a", "circle": ".", "hidden": "made", "chain": "link"}.items():
        (tmp_path / name).symlink_to(target)
    found = scanned(tmp_path)
    assert set(found.files) == {".gitignore", "a/x", "link", "chain"}
    assert found.links == {"link": "a/x", "chain": "a/x"}
    assert found.files["link"] == found.files["a/x"]
    assert found.loose == {"folder", "circle", "hidden", "chain"}


def test_a_folder_that_cannot_be_listed_is_named_and_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a", "locked/x", "z/y")
    if os.geteuid() == 0:  # no folder is closed to root: the system's answer is played
        open_below = scanning.open_below

        def refusing(root: Path, path: str, flags: int) -> int:
            if path == "locked":
                raise PermissionError(13, "Permission denied")
            return open_below(root, path, flags)

        monkeypatch.setattr(scanning, "open_below", refusing)
    (tmp_path / "locked").chmod(0)
    found = scanned(tmp_path)
    (tmp_path / "locked").chmod(0o700)
    assert set(found.files) == {"a", "z/y"}
    assert [(skipped.path, skipped.reason) for skipped in found.skipped] == [("locked", SkipReason.UNREADABLE)]


def test_files_and_folders_that_vanish_during_the_walk_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a/x", "b/x", "c", "d")
    is_utf8 = scanning.is_utf8

    def removing(name: str) -> bool:
        for path in ["a/x", "b/x"]:
            (tmp_path / path).unlink(missing_ok=True)
            if (tmp_path / path).parent.exists():
                (tmp_path / path).parent.rmdir()
        (tmp_path / "d").unlink(missing_ok=True)
        return is_utf8(name)

    monkeypatch.setattr(scanning, "is_utf8", removing)
    found = scanned(tmp_path)
    assert set(found.files) == {"c"}
    assert not found.skipped


def test_a_root_that_is_gone_is_missed(tmp_path: Path) -> None:
    found = scanned(tmp_path / "gone")
    assert not found.files
    assert [skipped.reason for skipped in found.skipped] == [SkipReason.GONE]


def test_the_scan_of_every_path_is_the_scan_of_all(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "a/y.log", "b", "large", "made/x")
    (tmp_path / ".gitignore").write_text("*.log\nmade/\n")
    (tmp_path / "large").write_bytes(b"x" * 1001)
    (tmp_path / "link").symlink_to("a/x")
    os.mkfifo(tmp_path / "pipe")
    whole = scanned(tmp_path)
    every = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    rules = IgnoreRules(tmp_path)
    single = scan_paths(tmp_path, rules, [*every, "gone", "gone/too", "b/c"], max_file_bytes=1000)
    assert (single.files, single.links) == (whole.files, whole.links)
    assert set(single.skipped) == set(whole.skipped)


def test_a_scan_of_a_repository_is_what_git_would_add(tmp_path: Path) -> None:
    draw = random.Random(7)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    names = ["a", "b", "c.py", "d.log", "build", "é"]
    for _ in range(150):
        path = tmp_path.joinpath(*draw.choices(names, k=draw.randint(1, 5)))
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    for folder in [tmp_path, *(path for path in tmp_path.rglob("[ab]") if path.is_dir())][:5]:
        lines = draw.choices(["*.log", "!d.log", "build/", "/a/b", "a/*", "!c.py", "**/b/c.py", "b"], k=3)
        (folder / ".gitignore").write_text("\n".join(lines))
    command = ["git", "-c", "core.excludesFile=", "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    assert set(scanned(tmp_path).files) == {path.decode() for path in listed.split(b"\0") if path}
