r"""The file names in the headers of a diff: quoting, prefixes, time stamps, and which two names mean one file.

--- a/src/x.py                            prefixes of git, hg
--- "a/\303\274.py"                       C quoting, octal bytes of UTF-8
--- x.py<TAB>2024-01-01 10:00:00 +0000    a tab ends the name; a time stamp behind spaces does too
--- x.py<TAB>(revision 12)                Subversion
"""

from __future__ import annotations

import re

DEV_NULL = "/dev/null"
# Two paths of any system are shorter; each space of a header is tried as the one between them.
_MAX_HEADER_CHARS = 10_000
_STAMP = re.compile(
    r"(?<!\s)\s++(\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d.*)$"
    r"|(?<!\s)\s*+\((revision \d+|working copy|nonexistent)\)$"
)
_EPOCH = re.compile(r"\s(1970-01-01 00:00:00|\w{3} Jan 0?1 00:00:00 1970)|\((revision 0|nonexistent)\)")
_ESCAPE = re.compile(r'\\([0-7]{1,3}|[abfnrtv"\\])')
_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\"}
# What git puts before old and new names, by configuration and by what is compared.
_PREFIXES = (("a/", "b/"), ("i/", "w/"), ("c/", "i/"), ("c/", "w/"), ("o/", "w/"), ("b/", "a/"))
_BACKUPS = (".orig", ".old", ".bak", "~")
_GIT_HEADER = re.compile(r'diff --git ("(?:[^"\\]|\\.)*"|\S.*?) ("(?:[^"\\]|\\.)*"|\S.*)')


def name_in(header: str) -> str:
    """Return the name that stands behind `--- ` or `+++ `, prefix included."""
    header = header.rstrip("\r")
    if header.startswith('"'):
        closed = re.match(r'"((?:[^"\\]|\\.)*)"', header)
        return _unquoted(closed[1]) if closed else header
    return _STAMP.sub("", header.split("\t", 1)[0]).rstrip(" ")


def is_absent(header: str) -> bool:
    """Tell whether a header's time stamp or revision may say that the file does not exist on this side."""
    return name_in(header) == DEV_NULL or _EPOCH.search(header) is not None


def path_and_move(old: str, new: str) -> tuple[str, str]:
    """Return the path that two names mean, and the new path of a rename or ''.

    Different names behind the prefixes `a/` and `b/` are a rename. Without prefixes (`diff -u x.py.orig x.py`) they are
    one file: the name without the suffix of a backup, the one that is the end of the other, else the old one.
    """
    if DEV_NULL in (old, new):
        side, name = ("a/", old) if new == DEV_NULL else ("b/", new)
        return name.removeprefix(side), ""
    if old == new:
        return old, ""
    for left, right in _PREFIXES:
        if old.startswith(left) and new.startswith(right):
            one, other = old[2:], new[2:]
            if one == other:
                return one, ""
            if left == "a/":
                return one, other
    if old.removeprefix("a/") == new.removeprefix("b/"):
        return new.removeprefix("b/"), ""
    if any(old == new + suffix for suffix in _BACKUPS) or old.endswith("/" + new):
        return new, ""
    return old, ""


def may_name_files(old: str, new: str) -> bool:
    """Tell whether what stands behind `--- ` and `+++ ` may be two files: one, or two names with a suffix or folder."""
    names = name_in(old), name_in(new)
    if DEV_NULL in names or names[0] == names[1] or "\t" in old + new:
        return True
    return all(re.fullmatch(r"\S*[\w-][./\\]\w\S*", name) for name in names)


def git_header_names(line: str) -> tuple[str, str]:
    """Return the two names of a `diff --git` line, prefixes included; two empty names where they cannot be told.

    Names with spaces are not quoted: then the split is right that leaves two names equal behind their prefixes.
    """
    whole = _GIT_HEADER.fullmatch(line.rstrip("\r"))
    if whole is None or len(line) > _MAX_HEADER_CHARS:
        return "", ""
    if whole[1].startswith('"') or whole[2].startswith('"') or line.count(" ") == 3:
        return name_in(whole[1]), name_in(whole[2])
    rest = line[len("diff --git ") :].rstrip("\r")
    for at, char in enumerate(rest):
        old, new = rest[:at], rest[at + 1 :]
        if char == " " and (old == new or old.partition("/")[2] == new.partition("/")[2] != ""):
            return old, new
    return "", ""


def _unquoted(quoted: str) -> str:
    r"""Undo C quoting; octal escapes are bytes of UTF-8 ('\303\274' is one letter)."""
    octets = bytearray()
    at = 0
    for escape in _ESCAPE.finditer(quoted):
        octets += quoted[at : escape.start()].encode()
        code = escape[1]
        octets += bytes([int(code, 8) & 0xFF]) if code[0].isdigit() else _NAMED[code].encode()
        at = escape.end()
    return (octets + quoted[at:].encode()).decode("utf-8", "replace")
