"""One hunk of a unified diff: its header, and its lines as what is looked for and what is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from editor.types import Hint, Replacement

# Numbers of more digits count no lines, and Python refuses to read them.
_NUMBER = r"(\d{1,18})"
NUMBERED = re.compile(rf"@@+ -{_NUMBER}(?:,{_NUMBER})? \+{_NUMBER}(?:,{_NUMBER})? @@+(?P<heading>.*)")
_NO_CODE = re.compile(r"[\s.,+\-\d]*")


@dataclass(frozen=True, slots=True)
class Header:
    """One `@@` line: the ranges [start, count) of both sides, None where it has no numbers."""

    old: tuple[int, int] | None
    new: tuple[int, int] | None
    scope: str


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk; `final_newline` is whether the new text ends with one, None if the hunk does not say."""

    change: Replacement
    header: Header
    final_newline: bool | None


def header_of(line: str) -> Header:
    """Return what an `@@` line says."""
    line = line.rstrip("\r")
    numbered = NUMBERED.fullmatch(line)
    if numbered:
        old = (int(numbered[1]), int(numbered[2] or 1))
        new = (int(numbered[3]), int(numbered[4] or 1))
        return Header(old, new, numbered["heading"].strip())
    inside, closing, heading = line[2:].partition("@@")
    named = [part.strip() for part in ((inside, heading) if closing else (line[2:],))]
    return Header(None, None, next((part for part in named if not _NO_CODE.fullmatch(part)), ""))


def hunk_of(header: Header, body: Sequence[str], counted: bool) -> Hunk:
    """Return the hunk of the lines below a header; `counted` tells whether its counts are theirs."""
    before: list[str] = []
    after: list[str] = []
    sign = ""
    old_open, new_open = -1, -1
    for line in body:
        if line.startswith("\\"):
            old_open = len(before) if sign in " -" else old_open
            new_open = len(after) if sign in " +" else new_open
            continue
        sign, text = line[:1] or " ", line[1:]
        if sign in " -":
            before.append(text)
        if sign in " +":
            after.append(text)
    old_is_open, new_is_open = old_open == len(before), new_open == len(after)
    hint = Hint(_line_hint(header, counted), (header.scope,) if header.scope else (), old_is_open or new_is_open)
    final_newline = None if old_is_open == new_is_open else old_is_open
    return Hunk(Replacement(tuple(before), tuple(after), hint), header, final_newline)


def _line_hint(header: Header, counted: bool) -> int | None:
    """Return the line index that a header gives; '-1,N' with wrong counts is a form filled in, not a place."""
    if header.old is None or (not counted and header.old[0] <= 1):
        return None
    start, count = header.old
    return start - 1 if count and start else start
