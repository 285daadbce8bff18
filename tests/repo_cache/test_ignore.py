"""Ignore rules equal `git check-ignore`; rules beyond git's do what their docstrings say."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from repo_cache.ignore import IgnoreRules, PatternFile

NAMES = [
    "a",
    "b",
    "c",
    "ab",
    "abc",
    "a.b",
    "foo",
    "foobar",
    "a b",
    "a ",
    "]",
    "[",
    "-",
    "!x",
    "#x",
    "é",
    "a\\b",
    "\\",
    "*",
]
ATOMS = [
    *["a", "b", "c", "ab", "foo", ".b", "é", " ", "-", "]", "!", "#", "\\", "\t"],
    *["*", "**", "***", "?", "/", "/", "/", "**/", "/**", "/**/"],
    *["[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "[!]]", "[\\]]", "[a-]", "[-a]", "[c-a]", "[/]", "[a-\\c]", "[é]"],
    *["[[:alpha:]]", "[[:punct:]x]", "[[:none:]]", "[[:]", "[[:]a]", "[a", "[", "\\a", "\\*", "\\ ", "\\\\"],
]


def git(root: Path, *arguments: str, text: bytes = b"") -> bytes:
    settings = ["-c", "core.excludesFile=", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(["git", *settings, *arguments], cwd=root, input=text, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def ignored_by_git(root: Path, paths: list[str]) -> set[str]:
    asked = b"\0".join(os.fsencode(path) for path in paths) + b"\0"
    answers = git(root, "check-ignore", "--no-index", "-z", "--stdin", text=asked)
    return {os.fsdecode(path) for path in answers.split(b"\0") if path}


def grow(root: Path, draw: random.Random, num_files: int = 40) -> list[tuple[str, bool]]:
    """Make files at random; gives every path and whether it is a folder."""
    for _ in range(num_files):
        path = root.joinpath(*draw.choices(NAMES, k=draw.randint(1, 4)))
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    found = (path for path in root.rglob("*") if ".git" not in path.relative_to(root).parts)
    return sorted((path.relative_to(root).as_posix(), path.is_dir()) for path in found)


PLAIN = ["a", "b", "c", "foo", "*", "*.b", "a/", "b/", "/a", "/b", "a/b", "*/", "a/*", "**/c", "ab", "fo*"]


def pattern(draw: random.Random) -> str:
    if draw.random() < 0.5:
        return draw.choice(["", "!"]) + draw.choice(PLAIN)
    sign = "!" if draw.random() < 0.25 else ""
    return sign + "".join(draw.choices(ATOMS, k=draw.randint(1, 5))) + draw.choice(["", "", "/", " ", "\r", "  "])


def patterns(draw: random.Random, most: int) -> str:
    return "\n".join(pattern(draw) for _ in range(draw.randint(1, most))) + draw.choice(["", "\n"])


def assert_as_git(root: Path, draw: random.Random, num_rounds: int) -> int:
    git(root, "init", "-q")
    paths = grow(root, draw)
    folders = [root, *(root / path for path, is_folder in paths if is_folder)]
    rules = IgnoreRules(root)
    num_ignored = 0
    for _ in range(num_rounds):
        for folder in dict.fromkeys([root, *draw.choices(folders, k=draw.randint(0, 4))]):
            (folder / ".gitignore").write_text(patterns(draw, 3), newline="")
        (root / ".git/info/exclude").write_text(patterns(draw, 2), newline="")
        rules.forget()
        expected = ignored_by_git(root, [path for path, _ in paths])
        assert {path for path, is_folder in paths if rules.ignores(path, is_folder=is_folder)} == expected
        num_ignored += len(expected)
        for folder in folders:
            (folder / ".gitignore").unlink(missing_ok=True)
    return num_ignored


@pytest.mark.parametrize("seed", range(6))
def test_random_patterns_at_every_level_are_judged_as_git_does(tmp_path: Path, seed: int) -> None:
    assert assert_as_git(tmp_path, random.Random(seed), num_rounds=15) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_random_patterns_are_judged_as_git_does(tmp_path: Path, seed: int) -> None:
    assert_as_git(tmp_path, random.Random(seed), num_rounds=40)


@pytest.mark.parametrize(
    ("lines", "path", "is_folder"),
    [
        ("*\n!*/\n!*.py", "a", True),  # pathspec leaves the folder out here
        ("*\n!*/\n!*.py", "a/x.py", False),
        ("*\n!*/\n!*.py", "a/x.c", False),
        ("foo/\n!foo/keep", "foo/keep", False),
        ("foo/*\n!foo/keep", "foo/keep", False),
        ("/x", "a/x", False),
        ("a/**/b", "a/b", False),
        ("a/**/b", "a/1/2/b", False),
        ("a/**", "a", True),
        ("foo**/bar", "foobar", False),
        ("[!a]x", "bx", False),
        ("a[!a]x", "a/x", False),
        ("\ufeffx", "x", False),
        ("x\r\n", "x", False),
        ("x  ", "x", False),
        ("x\\ ", "x ", False),
        ("\\#x", "#x", False),
        ("?", "é", False),  # two bytes
        ("caf[é]", "café", False),
    ],
)
def test_well_known_corners_are_judged_as_git_does(tmp_path: Path, lines: str, path: str, is_folder: bool) -> None:
    git(tmp_path, "init", "-q")
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir() if is_folder else place.touch()
    (tmp_path / ".gitignore").write_text(lines, newline="")
    assert IgnoreRules(tmp_path).ignores(path, is_folder=is_folder) == bool(ignored_by_git(tmp_path, [path]))


def test_the_rules_above_a_part_of_a_repository_hold_in_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    part = tmp_path / "packages/one"
    (part / "src").mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("*.log\n/packages/one/src/made.py\n")
    (tmp_path / "packages/.gitignore").write_text("one/*.txt\n")
    (tmp_path / ".git/info/exclude").write_text("secret\n")
    for path in ["src/a.log", "src/made.py", "a.txt", "src/a.txt", "secret", "src/a.py"]:
        expected = bool(ignored_by_git(tmp_path, [f"packages/one/{path}"]))
        assert IgnoreRules(part).ignores(path, is_folder=False) == expected, path


def test_a_linked_worktree_obeys_the_exclude_file_of_its_repository(tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "first")
    git(main, "worktree", "add", "-q", "../linked")
    (main / ".git/info/exclude").write_text("secret\n")
    linked = tmp_path / "linked"
    assert ignored_by_git(linked, ["secret"]) == {"secret"}
    assert IgnoreRules(linked).ignores("secret", is_folder=False)


def test_git_itself_is_out_everywhere_and_nothing_else_without_rules(tmp_path: Path) -> None:
    rules = IgnoreRules(tmp_path, exclude=["!.git"])
    assert rules.ignores(".git", is_folder=True)
    assert rules.ignores("a/.git", is_folder=False)
    assert rules.ignores("a/.git/config", is_folder=False)
    assert not rules.ignores("a/.github/x", is_folder=False)


def test_excluded_patterns_outrank_gitignore_in_both_directions(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".gitignore").write_text("*.gen\n")
    (tmp_path / "a/.gitignore").write_text("!b.py\n")
    rules = IgnoreRules(tmp_path, exclude=["*.py", "!keep.gen"])
    assert rules.ignores("a/b.py", is_folder=False)
    assert rules.ignores("a/x.gen", is_folder=False)
    assert not rules.ignores("a/keep.gen", is_folder=False)


def test_with_include_only_matching_files_and_folders_are_in(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("made.py\n")
    rules = IgnoreRules(tmp_path, include=["*.py", "/docs/"])
    assert not rules.ignores("a/b.py", is_folder=False)
    assert not rules.ignores("docs/deep/x.txt", is_folder=False)
    assert not rules.ignores("a", is_folder=True)
    assert rules.ignores("a/x.txt", is_folder=False)
    assert rules.ignores("a/docs/x.txt", is_folder=False)
    assert rules.ignores("made.py", is_folder=False)


def test_without_git_only_the_given_patterns_count(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("x\n")
    rules = IgnoreRules(tmp_path, use_git=False)
    assert not rules.ignores("x", is_folder=False)
    assert rules.get_governed_folder(".gitignore") is None


def test_changed_rules_count_from_when_they_are_forgotten(tmp_path: Path) -> None:
    rules = IgnoreRules(tmp_path)
    assert not rules.ignores("a/x", is_folder=False)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.gitignore").write_text("x\n")
    assert rules.get_governed_folder("a/.gitignore") == "a"
    rules.forget("a")
    assert rules.ignores("a/x", is_folder=False)
    assert not rules.ignores("x", is_folder=False)


def test_a_gitignore_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("x\n")
    (tmp_path / ".gitignore").symlink_to("rules")
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/.gitignore")
    rules = IgnoreRules(tmp_path)
    assert not rules.ignores("x", is_folder=False)
    assert not rules.ignores("a/x", is_folder=False)


def test_patterns_made_to_take_for_ever_do_not(tmp_path: Path) -> None:
    stars, folders = "*a" * 30 + "b\n", "/".join(["**/a"] * 30) + "/b\n"
    rules = PatternFile((stars + folders).encode())
    assert rules.verdict("a" * 200, is_folder=False) is None
    assert rules.verdict("a/" * 100 + "a", is_folder=False) is None
    assert rules.verdict("a" * 200 + "b", is_folder=False)
    assert rules.verdict("a/" * 100 + "b", is_folder=False)


def test_a_file_of_patterns_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bytes] = []

    def counting(data: bytes) -> PatternFile:
        compiled.append(data)
        return PatternFile(data)

    monkeypatch.setattr("repo_cache.ignore.PatternFile", counting)
    (tmp_path / ".gitignore").write_text("x\n")
    rules = IgnoreRules(tmp_path)
    for text in ["x\n", "x\n", "y\n"]:
        (tmp_path / ".gitignore").write_text(text)
        rules.forget()
        assert rules.ignores("x", is_folder=False) == (text == "x\n")
    assert [data for data in compiled if data] == [b"x\n", b"y\n"]
