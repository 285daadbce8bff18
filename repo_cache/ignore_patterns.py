"""A compiled file of gitignore patterns: which paths its last matching line ignores or includes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

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
