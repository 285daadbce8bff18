"""Reads the message in which clients of hosted apply services send an edit: `<instruction><code><update>`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from agent_runtime.errors import BadRequest

MAX_BORDERS = 8
"""So many places at which one section may end and the next begin are looked at; a text with more is not such a file."""

Span = tuple[int, int]

_TAGS = ("instruction", "code", "update")
_TO_CODE = re.compile(r"</instruction>\s*<code>")
_TO_UPDATE = re.compile(r"</code>\s*<update>")
_FIRST_LINE = re.compile(r"\A\r?\n")
_LAST_LINE = re.compile(r"\r?\n\Z")


@dataclass(frozen=True, slots=True)
class ApplyMessage:
    """What the sections say; `code` is the file, byte for byte."""

    code: str
    update: str
    instruction: str = ""


def read_apply_message(text: str) -> ApplyMessage | None:
    r"""The edit that a message holds; None where it has another form and is a question like any other.

    The message is `<code>...</code><update>...</update>`, maybe with `<instruction>...</instruction>` before, and
    nothing but white space around and between. What stands in a section is taken as it is, with one exception: where
    both `<code>` and `<update>` are followed by a line's end and both closing tags begin a line, these line ends are
    the message's and not the texts'.

    The texts may hold the tags, too. Where that leaves several ways to read the message, the one is taken in which
    every section opens and closes each tag equally often; raises BadRequest where there are several such, or none: a
    file cut at the wrong place would be damaged.
    """
    text = text.strip()
    has_instruction = text.startswith("<instruction>")
    if not text.endswith("</update>") or not (has_instruction or text.startswith("<code>")):
        return None
    readings = list(_readings(text, has_instruction))
    if len(readings) > 1:
        readings = [spans for spans in readings if all(_is_balanced(text, *span) for span in spans)]
        if len(readings) != 1:
            raise BadRequest(
                "it cannot be told where <code> ends and <update> begins, for the texts hold these tags themselves; "
                "send the file and the edit apart, to /v1/code/apply or /apply",
                field="messages",
            )
    if not readings:
        return None
    *instruction, code, update = (text[start:end] for start, end in readings[0])
    code, update = _without_layout(code, update)
    return ApplyMessage(code, update, "".join(instruction).strip())


def _readings(text: str, has_instruction: bool) -> Iterator[tuple[Span, ...]]:
    """All ways to part the message: where its sections begin and end."""
    first, last = len("<instruction>" if has_instruction else "<code>"), len(text) - len("</update>")
    to_update = _borders(_TO_UPDATE, text)
    if not has_instruction:
        yield from (((first, start), (end, last)) for start, end in to_update)
        return
    for before, behind in _borders(_TO_CODE, text):
        yield from (((first, before), (behind, start), (end, last)) for start, end in to_update if behind <= start)


def _borders(pattern: re.Pattern[str], text: str) -> Sequence[Span]:
    found = [match.span() for match in islice(pattern.finditer(text), MAX_BORDERS + 1)]
    if len(found) > MAX_BORDERS:
        raise BadRequest(
            f"the texts hold the tags of the message more than {MAX_BORDERS} times; send the file and the edit apart, "
            "to /v1/code/apply or /apply",
            field="messages",
        )
    return found


def _is_balanced(text: str, start: int, end: int) -> bool:
    return all(text.count(f"<{tag}>", start, end) == text.count(f"</{tag}>", start, end) for tag in _TAGS)


def _without_layout(code: str, update: str) -> tuple[str, str]:
    """The texts without the line ends that only set them apart from the tags."""
    if all(_FIRST_LINE.search(text) and _LAST_LINE.search(text[1:]) for text in (code, update)):
        code, update = (_LAST_LINE.sub("", _FIRST_LINE.sub("", text)) for text in (code, update))
    return code, update
