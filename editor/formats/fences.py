"""The Markdown fence that a model puts around a whole edit, told from fences that belong to the text."""

from __future__ import annotations

import re

from editor.formats.placeholders import is_placeholder

_FENCE = re.compile(r"(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)")
_TALK = re.compile(
    r"\b(here|updated?|edit(ed)?|changes?|changed|snippet|apply|modified|below|following)\b", re.IGNORECASE
)
_MAX_TALK_LINES = 4


def without_fence(lines: list[str]) -> list[str]:
    """Return the lines inside the outer fence, with talk around it left out; all lines if there is none.

    The fence must be one pair around everything (fences nested by their info strings are allowed inside): a Markdown
    snippet that begins with one code block and ends with another keeps both. Talk is only taken for talk if it
    introduces the fence ("Here is the updated code:") or only the fence holds placeholders.
    """
    opened = next((at for at, line in enumerate(lines) if _FENCE.fullmatch(line)), None)
    if opened is None:
        return lines
    closed = _closing(lines, opened)
    if closed is None:
        return lines
    above = [line for line in lines[:opened] if line.strip()]
    below = [line for line in lines[closed + 1 :] if line.strip()]
    inside = lines[opened + 1 : closed]
    more_fences = any(_FENCE.fullmatch(line) for line in below)
    alone = not above and not below
    return inside if alone or (not more_fences and _is_talk(above, below, inside)) else lines


def is_fence(line: str) -> bool:
    """Tell whether a line opens or closes a fence."""
    return _FENCE.fullmatch(line.strip()) is not None


def outer_fence(lines: list[str], infos: tuple[str, ...]) -> range:
    """Return the lines inside the first fence if it has one of these info strings; none otherwise."""
    for at, line in enumerate(lines):
        if fence := _FENCE.fullmatch(line):
            closed = _closing(lines, at) if fence["info"].strip().lower() in infos else None
            return range(0) if closed is None else range(at + 1, closed)
    return range(0)


def _closing(lines: list[str], opened: int) -> int | None:
    """Return where the fence closes: an info string opens a nested fence, a bare one closes the innermost."""
    first = _FENCE.fullmatch(lines[opened])
    assert first is not None
    open_ticks = [first["ticks"]]
    for at in range(opened + 1, len(lines)):
        fence = _FENCE.fullmatch(lines[at])
        if fence is None or fence["ticks"][0] != open_ticks[-1][0]:
            continue
        if fence["info"].strip():
            open_ticks.append(fence["ticks"])
        elif len(fence["ticks"]) >= len(open_ticks[-1]):
            open_ticks.pop()
            if not open_ticks:
                return at
    return None


def _is_talk(above: list[str], below: list[str], inside: list[str]) -> bool:
    outside = above + below
    if len(outside) > _MAX_TALK_LINES or any(is_placeholder(line) for line in outside):
        return False
    # Headings, lists, tables and quotes are the text of a Markdown file, not talk about one.
    if any(re.match(r"\s*(#|[-*+] |\d+\. |\||>)", line) for line in outside):
        return False
    introduced = bool(above) and above[-1].rstrip().endswith(":") and _TALK.search(above[-1]) is not None
    return introduced or any(is_placeholder(line) for line in inside)
