"""Decides which paths of a workspace are ignored, by git's ignore rules and the user's patterns."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from repo_cache.files import read_small_file

SPECIAL = "*?[\\"
CLASSES = {
    "alnum": r"0-9A-Za-z",
    "alpha": r"A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": r"0-9",
    "graph": r"!-~",
    "lower": r"a-z",
    "print": r" -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\n\r\v\f",
    "upper": r"A-Z",
    "xdigit": r"0-9A-Fa-f",
}
STAR, FOLDERS, REST = "*", "**/", "**"
"""Tokens besides regular expressions: any characters within a name; any number of folders; the rest of the path."""


class _InvalidPattern(ValueError):
    """The pattern is malformed; in git it matches nothing."""


def to_bytes_text(text: str) -> str:
    """Return a text with one character for each byte, as git matches: its '?' is one byte of 'é'."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


class PatternFile:
    """The lines of one `.gitignore`. As in git, the last matching line decides.

    The semantics are those of git 2.39's dir.c and wildmatch.c, byte for byte. The regular expressions cannot backtrack
    exponentially (atomic groups, as in `fnmatch.translate`). pathspec is not used: it cannot decide on a folder alone
    ('*' with '!*/'), which a walk that prunes needs, and its brackets differ.
    """

    def __init__(self, data: bytes) -> None:
        patterns = [pattern for line in _split_lines(data) if (pattern := _parse_line(line)) is not None]
        self._for_files = _group_runs(pattern for pattern in patterns if not pattern.only_folders)
        self._for_folders = _group_runs(patterns)

    def __bool__(self) -> bool:
        return bool(self._for_folders)

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Return True for an ignored path, False for an included one, None if no line matches.

        `path` is relative to the file's folder and converted by `to_bytes_text`. Lines that match a parent folder of
        the path are not considered: ask for that folder.
        """
        name = path[path.rfind("/") + 1 :]
        for run in self._for_folders if is_folder else self._for_files:
            if run.matches(name, path):
                return run.leaves_out
        return None


@dataclass(frozen=True, slots=True)
class _Pattern:
    leaves_out: bool
    only_folders: bool
    only_name: bool
    text: str  # without '!', leading and trailing slash
    regex: str


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive patterns of the same sign; their order does not matter."""

    leaves_out: bool
    names: frozenset[str]
    endings: tuple[str, ...]
    name_regex: re.Pattern[str] | None
    path_regex: re.Pattern[str] | None

    def matches(self, name: str, path: str) -> bool:
        return (
            name in self.names
            or name.endswith(self.endings)
            or (self.name_regex is not None and self.name_regex.fullmatch(name) is not None)
            or (self.path_regex is not None and self.path_regex.fullmatch(path) is not None)
        )


def _split_lines(data: bytes) -> list[str]:
    text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    return [line.removesuffix("\r").partition("\0")[0] for line in text.split("\n")]


def _parse_line(line: str) -> _Pattern | None:
    line = _strip_trailing_blanks(line)
    if not line or line.startswith("#"):
        return None
    leaves_out = not line.startswith("!")
    text = line.removeprefix("!")
    only_folders = text.endswith("/")
    text = text.removesuffix("/")
    only_name = "/" not in text
    text = text.removeprefix("/")
    if not text:
        return None
    try:
        regex = _translate(text)
    except _InvalidPattern:
        return None
    return _Pattern(leaves_out, only_folders, only_name, text, regex)


def _strip_trailing_blanks(line: str) -> str:
    kept = line.rstrip(" ")
    num_backslashes = len(kept) - len(kept.rstrip("\\"))
    return kept + " " if num_backslashes % 2 and len(kept) < len(line) else kept


def _group_runs(patterns: Iterable[_Pattern]) -> tuple[_Run, ...]:
    """Return the runs in reverse order, so that the first match decides."""
    runs = [_make_run(sign, list(group)) for sign, group in groupby(patterns, key=lambda pattern: pattern.leaves_out)]
    return tuple(reversed(runs))


def _make_run(leaves_out: bool, patterns: Sequence[_Pattern]) -> _Run:
    names, endings, name_regexes, path_regexes = set[str](), list[str](), list[str](), list[str]()
    for pattern in patterns:
        if not pattern.only_name:
            path_regexes.append(pattern.regex)
        elif not any(character in pattern.text for character in SPECIAL):
            names.add(pattern.text)
        elif pattern.text[0] == "*" and not any(character in pattern.text[1:] for character in SPECIAL):
            endings.append(pattern.text[1:])
        else:
            name_regexes.append(pattern.regex)
    return _Run(
        leaves_out, frozenset(names), tuple(endings), _compile_union(name_regexes), _compile_union(path_regexes)
    )


def _compile_union(regexes: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(dict.fromkeys(regexes)), re.DOTALL) if regexes else None


def _translate(text: str) -> str:
    """Translate a pattern to a regular expression for `fullmatch`.

    The pieces between two '**' have a fixed number of names, so the first position that fits is as good as any later
    one and is never given up: 'a/**/b*c/**/d' is 'a/' (?> folders*? 'b[^/]*c/') folders* 'd'.
    """
    tokens = _tokenize(text)
    pieces: list[list[str]] = [[]]
    for token in tokens:
        if token == FOLDERS:
            pieces.append([])
        else:
            pieces[-1].append(token)
    first, *others = [_join_tokens(piece) for piece in pieces]
    if not others:
        return first
    middle = "".join(f"(?>(?:[^/]*/)*?{piece})" for piece in others[:-1] if piece)
    return f"{first}{middle}(?:[^/]*/)*{others[-1]}"


def _join_tokens(tokens: Sequence[str]) -> str:
    """Join tokens without '**/'. Within a name, only the last '*' before a slash may need backtracking."""
    parts: list[str] = []
    for is_slash, group in groupby(tokens, key=lambda token: token == "/"):
        if is_slash:
            parts.extend(group)
            continue
        first, *others = "".join(".*" if token == REST else token if token != STAR else "\0" for token in group).split(
            "\0"
        )
        parts.append(first)
        parts.extend(f"(?>[^/]*?{other})" for other in others[:-1] if other)
        parts.extend(f"[^/]*{other}" for other in others[-1:])
    return "".join(parts)


def _tokenize(text: str) -> list[str]:
    """Return regular expressions of single characters, '/', STAR, FOLDERS and REST."""
    tokens: list[str] = []
    at, num_literal = 0, next((place for place, character in enumerate(text) if character in SPECIAL), len(text))
    while at < len(text):
        character = text[at]
        if character == "*":
            end = at + len(text[at:]) - len(text[at:].lstrip("*"))
            # git matches the text before the first special character separately, so 'a**/b' begins with '**/'
            opens = end - at > 1 and (at == num_literal or text[at - 1] == "/")
            if opens and text[end : end + 1] == "/":
                tokens.append(FOLDERS)
                end += 1
            else:
                tokens.append(REST if opens and end == len(text) else STAR)
            at = end
        elif character == "?":
            tokens.append("[^/]")
            at += 1
        elif character == "[":
            token, at = _parse_bracket(text, at + 1)
            tokens.append(token)
        elif character == "\\":
            if at + 1 == len(text):
                raise _InvalidPattern
            tokens.append(_escape(text[at + 1]))
            at += 2
        else:
            tokens.append(_escape(character))
            at += 1
    return tokens


def _escape(character: str) -> str:
    return "/" if character == "/" else re.escape(character)


def _parse_bracket(text: str, at: int) -> tuple[str, int]:
    """Return the regular expression of a bracket whose content starts at `at`, and the index after it."""
    negated = text[at : at + 1] in ("!", "^")
    at += negated
    parts: list[str] = []
    previous = ""
    first = True
    while first or text[at : at + 1] != "]":
        first = False
        if at >= len(text):
            raise _InvalidPattern
        character = text[at]
        name = re.compile(r"\[:([^\]]*):\]").match(text, at)
        if character == "-" and previous and text[at + 1 : at + 2] not in ("", "]"):
            last, at = _parse_bracket_character(text, at + 1)
            if previous <= last:
                parts.append(f"{re.escape(previous)}-{re.escape(last)}")
            previous = ""
        elif name:
            if name[1] not in CLASSES:
                raise _InvalidPattern
            parts.append(CLASSES[name[1]])
            previous, at = "", name.end()
        else:
            previous, at = _parse_bracket_character(text, at)
            parts.append(re.escape(previous))
    inside = "".join(parts)
    if negated:
        return f"[^/{inside}]", at + 1
    return (f"(?!/)[{inside}]" if inside else "(?!)"), at + 1


def _parse_bracket_character(text: str, at: int) -> tuple[str, int]:
    at += text[at : at + 1] == "\\"
    if at >= len(text):
        raise _InvalidPattern
    return text[at], at + 1


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
