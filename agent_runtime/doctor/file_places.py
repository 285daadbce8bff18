"""Which file's text a place of a prompt is in, as prompts commonly show files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_runtime.doctor.prompt_text import PromptText, TextPart

_HEADER = re.compile(
    r"""<(?:file|document|edited|source)\b[^>\n]*?(?:path|name|src|source)\s*=\s*["']([^"'\n]+)["']
    | ^\#{1,6}\s+(?:[Ff]ile:?\s+)?`?([\w./-]+\.\w{1,8})`?:?\s*$
    | ^(?:[Ff]ile|[Pp]ath)(?:\s+name)?:\s*`?([^\s`][^`\n]*?)`?\s*$
    | ^```\w*[ :]+(\S+\.\w{1,8})\s*$
    | ^`([\w./-]+\.\w{1,8})`:?\s*$
    | ^==>\s+(.+?)\s+<==$
    | ^\[File:\s+(\S+)[^\n]*$
    | ^(?:This\ is|Here\ is)\ the\ file\s+`([^`\n]+)`""",
    re.VERBOSE | re.MULTILINE,
)
"""How prompts name a file above its text."""

_CLOSED = re.compile(r"^(?:</(?:file|document|edited|source)>|```\s*|<\|im_end\|>)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The text of a file at characters [start, end) of a prompt."""

    path: str
    start: int
    end: int


def file_at(prompt: PromptText, place: int, part: TextPart) -> FilePlace | None:
    """The file whose text holds a character of a part; None where no line above names one, or its text has ended."""
    if part.path and part.start <= place < part.end:
        return FilePlace(part.path, part.start, part.end)
    text = prompt.text
    heads = list(_HEADER.finditer(text, part.start, place))
    start = text.find("\n", heads[-1].end()) + 1 if heads else 0
    if not start or start > place:
        return None
    if text.startswith("\n```", start):
        start += 1
    if text.startswith("```", start):
        start = text.find("\n", start) + 1
    if not start or start > place or _CLOSED.search(text, start, place):
        return None
    closed = _CLOSED.search(text, place)
    return FilePlace(next(name for name in heads[-1].groups() if name), start, closed.start() if closed else part.end)
