"""The statements of a text, found by its lines alone, and which statement replaces which.

A statement is a call over several lines, a run of comment lines, or one line of prose. The rules work on text of any
language and need no grammar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rapidfuzz import fuzz

_OPENING = ("{", ":", "=>", ">", "then", "do", "else", "begin", "try")
_BODY = re.compile(r"=>|\bfunction\b|\)\s*\{$|:$|\||\bdo\b|>$")
_OPEN_IMPORT = re.compile(r"(?:import|export)\b[^=(]*\{$")

LIKE = 60.0
"""The least rapidfuzz ratio (per cent) at which a statement counts as a rewrite of another."""

LIKE_IMPORT = 85.0
"""The same for imports of two modules: short imports are alike whatever they import."""

COMMENT = re.compile(
    r"\s*(?:\{\s*/\*|//|#(?!\[|!\[|include\b|define\b|if|else|endif|undef|region|endregion|pragma)|/\*|\*(?=[\s/]|$)|--\s|<!--|;|%|\"\"\"|''')"
)
IMPORT = re.compile(
    r"\s*(?:import\b|from\b.+\bimport\b|use\s|using\s|#\s*include\b|require|include\b|(?:const|let|var)\b.*\brequire\(|export\s.*\bfrom\b|@import\b|package\s)"
)
CLOSER = re.compile(r"[\s)\]};,>]*(?:/>|</[\w.:-]*>)?[\s)\]};,]*")

_MODIFIERS = (
    r"(?:(?:export|default|public|private|protected|internal|static|async|abstract|readonly|override|declare|get|set|"
    r"pub(?:\([^)]*\))?|final|suspend|sealed|virtual|partial|inline|const|extern|unsafe|open|data)\s+)*"
)
_NAMED = re.compile(
    _MODIFIERS + r"(?:def|class|function\*?|func|fun|fn|interface|type|enum|struct|impl|trait|namespace|module|mod|"
    r"record|object|protocol|extension)\s+(?:\([^)]*\)\s*)?([\w$.]+)"
)
_METHOD = re.compile(
    _MODIFIERS + r"(?:[\w$<>,\[\]?*&.:]+\s+)*([#~]?[\w$]+)\s*(?:<[^>]*>)?\s*\([^;=]*(?:\)[^;=]*\{|\{|,|\()\s*$"
)
_BOUND = re.compile(
    _MODIFIERS
    + r"(?:let|var|val)?\s*([#]?[\w$]+)\s*[:=]\s*(?:async\s*)?(?:function\b|(?:\([^)]*\)|[\w$]+)\s*(?::[^=]+)?=>|\($)"
)
_CALLED = re.compile(r"(?:await\s+)?[\w$.]+\(\s*([\"'`][^\"'`]+[\"'`]),.*[{(\[>]$")
_NO_NAMES = re.compile(
    r"await|catch|do|elif|else|expect|for|foreach|if|lock|match|new|return|super|switch|throw|unless|until|using|while|with"
)
_SKIPPED = (
    r"(?:(?:export|default|const|let|var|val|return|await|async|private|public|protected|readonly|static|final|if|for|"
    r"while|with|yield|throw|new|not|else|elif|case|int|string|bool|auto|local|mut|my)\s+)*"
)
_KEY = re.compile(
    r"[^\w\"'`$@#]*" + _SKIPPED + r"([\"'`]?[@#]?[\w$.\-]+[\"'`]?\??)"
    r"\s*(?:[:=(<{,\[)\]};&|+*/%>!]|-[=>]?|$|(?:in|is|and|or|not|as|of|if|instanceof)\b)"
)
_IDENTIFIER = re.compile(r"[\w$]+")
_DIRECTIVE = re.compile(r"#\s*(?:if|elif)\w*\b")
_QUOTED = re.compile(r"[\"'<]([^\"'>]+)[\">']")
_TAG = re.compile(r"</?[\w.:-]*")
_TYPED = re.compile(_SKIPPED + r"[\w$<>\[\]?.,*&]+\s+([\w$]+)\s*(?:=|;|$)")


@lru_cache(maxsize=20_000)
def find_name(line: str) -> str | None:
    """Return the name that a line defines (a function, a class, a test by its title), None if it defines none."""
    text = line.strip()
    for pattern in (_NAMED, _BOUND, _METHOD, _CALLED):
        found = pattern.match(text)
        if found:
            return None if _NO_NAMES.fullmatch(found[1]) else found[1]
    return None


@lru_cache(maxsize=20_000)
def may_be_call(line: str) -> bool:
    """Return whether a line that defines a name may as well be a call over several lines: `foo(`, `new Foo(a, {`."""
    text = line.strip()
    found = next((at for at, one in enumerate((_NAMED, _BOUND, _METHOD, _CALLED)) if one.match(text)), -1)
    return found == 2


@lru_cache(maxsize=20_000)
def find_key(line: str) -> str | None:
    """Return the subject of a line: the assigned name, the called function, the key, the imported module; or None."""
    text = line.strip()
    directive = _DIRECTIVE.match(text)
    if directive:
        return directive[0]
    if IMPORT.match(text):
        quoted = _QUOTED.search(text)
        words = text.split()
        return quoted[1].rsplit("/", 1)[-1] if quoted else words[1].rstrip(";") if len(words) > 1 else text
    if text.startswith("<"):
        tag = _TAG.match(text)
        return tag[0] if tag else None
    typed = _TYPED.match(text)
    if typed:
        return typed[1]
    found = _KEY.match(text)
    return found[1].strip("\"'`?") if found else None


def number_statements(lines: Sequence[str]) -> list[int]:
    """Return the number of the statement of each line, in order; `lines` are not blank.

    A statement has the lines inside of its round or square brackets, and deeper lines after a line that opens no block.
    Successive comment lines are one statement.
    """
    numbers: list[int] = []
    number, depth, head_width = -1, 0, 0
    was_comment = in_import = opens = False
    for line in lines:
        text = line.strip()
        width = len(line) - len(line.lstrip())
        is_comment = COMMENT.match(line) is not None
        continues = number >= 0 and (
            depth > 0
            or in_import
            or (is_comment and was_comment)
            or CLOSER.fullmatch(text) is not None
            or (width > head_width and not opens and not was_comment)
        )
        if not continues:
            number += 1
            depth, head_width = 0, width
        in_import = (in_import and "}" not in text) or (text.endswith("{") and _OPEN_IMPORT.match(text) is not None)
        numbers.append(number)
        opens = text.endswith(_OPENING)
        if not is_comment:
            depth = max(0, depth + sum(map(text.count, "([")) - sum(map(text.count, ")]")))
            closes = text.endswith("}") and text.count("{") < text.count("}")
            if (opens and (depth == 0 or _BODY.search(text))) or closes:
                depth = 0
        was_comment = is_comment
    return numbers


def is_rewrite(old: str, new: str) -> bool:
    """Return whether one statement may replace another: it has the same name or key, or is similar.

    An import replaces an import of another module only if the two are nearly the same.

    The texts are the statements' lines without indentation, joined by line feeds.
    """
    old_head, new_head = old.split("\n", 1)[0], new.split("\n", 1)[0]
    name = find_name(old_head)
    if name is not None and name == find_name(new_head):
        return True
    key = _key_of_statement(old)
    if key is not None and key == _key_of_statement(new):
        return True
    if IMPORT.match(old_head) and IMPORT.match(new_head):
        return fuzz.ratio(old, new) >= LIKE_IMPORT or _is_moved_module(old, new)
    return fuzz.ratio(old, new) >= LIKE or ("\n" in old + new and fuzz.ratio(old_head, new_head) >= LIKE)


def _is_moved_module(old: str, new: str) -> bool:
    """Return whether two imports end in one name and one has all words of the other: `use a::B`, `use x::a::B`."""
    words, others = _IDENTIFIER.findall(old), _IDENTIFIER.findall(new)
    return words[-1] == others[-1] and (set(words) <= set(others) or set(others) <= set(words))


def _key_of_statement(text: str) -> str | None:
    """Return the subject of a statement; an import over several lines names its module at the end."""
    return find_key(
        " ".join(text.split("\n")) if _OPEN_IMPORT.match(text.split("\n", 1)[0]) else text.split("\n", 1)[0]
    )


def can_replace(removed: Sequence[str], added: Sequence[str], *, pairs_comments: bool = False) -> bool:
    """Return whether each removed statement can be paired with its own added one, in order.

    With `pairs_comments` any comment may replace any other.
    """
    if len(removed) > len(added):
        return False
    best = [0] * (len(added) + 1)
    for old in removed:
        row = best[:]
        for at, new in enumerate(added):
            fits = is_rewrite(old, new) or (pairs_comments and bool(COMMENT.match(old) and COMMENT.match(new)))
            row[at + 1] = max(row[at], best[at + 1], best[at] + 1 if fits else 0)
        best = row
    return best[-1] == len(removed)


def group_statements(lines: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return the lines joined to statements by their numbers, without indentation and without bare closing brackets."""
    found: dict[int, list[str]] = {}
    for line, number in zip(lines, numbers, strict=True):
        if any(char.isalnum() for char in line):
            found.setdefault(number, []).append(line.strip())
    return ["\n".join(group) for group in found.values()]
