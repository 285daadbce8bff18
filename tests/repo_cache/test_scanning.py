"""A scan holds what is in, names what is skipped, and agrees with git and with the scan of single paths."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from repo_cache import scan as scanning
from repo_cache.files import FileContent, SkipReason, read_file, to_file_stat
from repo_cache.ignore import IgnoreRules
from repo_cache.scan import Scan, scan, scan_paths


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
