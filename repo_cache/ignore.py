"""Decides which paths of a workspace are ignored, by git's ignore rules and the user's patterns."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repo_cache.files import read_small_file
from repo_cache.ignore_patterns import PatternFile, to_bytes_text

GIT_FOLDER, IGNORE_FILE, EXCLUDE_FILE = ".git", ".gitignore", ".git/info/exclude"
NOTHING = PatternFile(b"")


@dataclass(frozen=True, slots=True)
class _Level:
    """One pattern file. It matches `front` + the path in the workspace without its first `num_cut` bytes."""

    patterns: PatternFile
    num_cut: int = 0
    front: str = ""


@dataclass(frozen=True, slots=True)
class FolderRules:
    """The rules for the entries of one folder that is not ignored."""

    prefix: str  # the folder's path and a slash as bytes text; '' for the root
    levels: tuple[_Level, ...]  # the first that matches decides
    include: PatternFile | None
    is_included: bool

    def ignores(self, name: str, *, is_folder: bool) -> bool:
        """Return whether the entry of this name is ignored."""
        if name == GIT_FOLDER:
            return True
        path = self.prefix + to_bytes_text(name)
        for level in self.levels:
            verdict = level.patterns.verdict(level.front + path[level.num_cut :], is_folder=is_folder)
            if verdict is not None:
                if verdict:
                    return True
                break
        if is_folder or self.include is None or self.is_included:
            return False
        return self.include.verdict(path, is_folder=False) is not True


class IgnoreRules:
    """The ignore rules of one workspace. Thread-safe. A `.gitignore` is compiled once, and again when its bytes change.

    `exclude` are lines as in a `.gitignore` with precedence over all others ('!kept/' includes what git ignores). With
    `include`, only files are included that match one of these patterns or lie in a folder that does. `.git` is ignored
    at every level. If the workspace is part of a git repository, the rules of its parent folders apply too. As in git,
    nothing below an ignored folder can be included again. Unlike in git, a tracked file can be ignored. The user's
    global ignore file is not read.
    """

    def __init__(
        self, root: Path, *, include: Sequence[str] = (), exclude: Sequence[str] = (), use_git: bool = True
    ) -> None:
        self._root = root.resolve()
        self._use_git = use_git
        self._include = PatternFile("\n".join(include).encode("utf-8", "surrogateescape")) if include else None
        self._exclude = PatternFile("\n".join(exclude).encode("utf-8", "surrogateescape"))
        self._compiled: dict[str, tuple[bytes, PatternFile]] = {}
        self._folders: dict[str, FolderRules | None] = {}  # None: the folder is ignored
        self._lock = threading.Lock()

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a relative POSIX path or one of its parent folders is ignored."""
        folder, _, name = path.rpartition("/")
        rules = self.get_rules(folder)
        return rules is None or rules.ignores(name, is_folder=is_folder)

    def get_rules(self, folder: str) -> FolderRules | None:
        """Return the rules for the entries of a folder ('' is the root); None if the folder is ignored."""
        with self._lock:
            if folder in self._folders:
                return self._folders[folder]
            if "" not in self._folders:
                self._folders[""] = self._make_root_rules()
            rules, at = self._folders[""], ""
            for name in folder.split("/") if folder else ():
                parent, at = rules, f"{at}/{name}" if at else name
                if at not in self._folders:
                    self._folders[at] = None if parent is None else self._make_folder_rules(parent, at, name)
                rules = self._folders[at]
            return rules

    def reload_rules(self, folder: str) -> FolderRules | None:
        """Read a folder's own rules again and return them as `get_rules` does; the rules of its parents are kept."""
        with self._lock:
            self._folders.pop(folder, None)
        return self.get_rules(folder)

    def get_governed_folder(self, path: str) -> str | None:
        """Return the folder ('' is the root) whose rules this file sets; None for other files."""
        if not self._use_git:
            return None
        if path == EXCLUDE_FILE:
            return ""
        folder, _, name = path.rpartition("/")
        return folder if name == IGNORE_FILE else None

    def forget(self, folder: str = "") -> None:
        """Read the rules of this folder and its subfolders again at their next use."""
        with self._lock:
            below = folder + "/"
            for known in [known for known in self._folders if not folder or known == folder or known.startswith(below)]:
                del self._folders[known]

    def _make_root_rules(self) -> FolderRules:
        levels = [_Level(self._exclude), *self._make_level(""), *self._make_parent_levels()]
        return FolderRules("", tuple(level for level in levels if level.patterns), self._include, is_included=False)

    def _make_folder_rules(self, parent: FolderRules, folder: str, name: str) -> FolderRules | None:
        if parent.ignores(name, is_folder=True):
            return None
        path = to_bytes_text(folder)
        is_included = parent.is_included or (
            self._include is not None and self._include.verdict(path, is_folder=True) is True
        )
        first = parent.levels[:1] if self._exclude else ()
        levels = (*first, *self._make_level(folder), *parent.levels[len(first) :])
        return FolderRules(path + "/", levels, self._include, is_included)

    def _make_level(self, folder: str) -> tuple[_Level, ...]:
        if not self._use_git:
            return ()
        path = f"{folder}/{IGNORE_FILE}" if folder else IGNORE_FILE
        patterns = self._compile_patterns(path, read_small_file(self._root, path))
        return (_Level(patterns, len(to_bytes_text(folder)) + 1 if folder else 0),) if patterns else ()

    def _make_parent_levels(self) -> list[_Level]:
        """Return the `.gitignore` files between the workspace and the top of its repository, and the exclude file."""
        top = next((place for place in (self._root, *self._root.parents) if (place / GIT_FOLDER).exists()), None)
        if top is None or not self._use_git:
            return []
        levels = []
        for place in self._root.parents[: len(self._root.parts) - len(top.parts)]:
            patterns = self._compile_patterns(str(place / IGNORE_FILE), read_small_file(place, IGNORE_FILE))
            levels.append(_Level(patterns, front=self._make_prefix(place)))
        common = _find_common_git_folder(top / GIT_FOLDER)
        patterns = self._compile_patterns(str(common / "info/exclude"), read_small_file(common, "info/exclude"))
        return [*levels, _Level(patterns, front=self._make_prefix(top))]

    def _make_prefix(self, place: Path) -> str:
        way = self._root.relative_to(place).as_posix()
        return "" if way == "." else to_bytes_text(way) + "/"

    def _compile_patterns(self, source: str, data: bytes | None) -> PatternFile:
        if not data:
            self._compiled.pop(source, None)
            return NOTHING
        known = self._compiled.get(source)
        if known is None or known[0] != data:
            known = self._compiled[source] = (data, PatternFile(data))
        return known[1]


def _find_common_git_folder(git: Path) -> Path:
    """Return the folder of `info/`: `.git` itself, or the main repository's for a linked worktree."""
    if git.is_dir():
        return git
    link = read_small_file(git.parent, GIT_FOLDER) or b""
    folder = git.parent / os.fsdecode(link.removeprefix(b"gitdir:").strip())
    common = read_small_file(folder, "commondir")
    return folder / os.fsdecode(common.strip()) if common else folder
