"""The errors of the editor, and the format of lines in messages.

EditorError
├── CodecError              the file's bytes cannot be edited as text
│   ├── BinaryFileError     they are no text: a NUL, or too many control characters
│   ├── UndecodableError    they are not in the encoding that their byte order mark names
│   └── NotEncodableError   the merged text holds something that the file's encoding cannot express
├── TooMuchWorkError        the edit is past a bound of work; `editor.merge` answers it as `Unresolved`
└── EditSyntaxError         the edit itself cannot be read; `code` and `suggestion` say why and what to send
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

SyntaxCode = Literal["empty_edit", "only_markers", "malformed", "several_files"]
"""The members of `editor.types.ReasonCode` that are found before any file is looked at."""


class EditorError(Exception):
    """Base class of all errors of the editor."""


class CodecError(EditorError):
    """Bytes that cannot become text, or text that cannot become bytes."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BinaryFileError(CodecError):
    """The bytes hold a NUL, or too many control characters."""


class UndecodableError(CodecError):
    """The bytes are not in the encoding that their byte order mark names."""


class NotEncodableError(CodecError):
    """The text holds a character that cannot be written in the file's encoding: `char`, on `line` (from 1)."""

    def __init__(self, message: str, char: str, line: int) -> None:
        super().__init__(message)
        self.char = char
        self.line = line


class TooMuchWorkError(EditorError):
    """An edit that would take seconds: `bound` names the bound that is exceeded. Work is counted, never timed."""

    def __init__(self, bound: str) -> None:
        super().__init__(f"The edit is past a bound of work: {bound}.")
        self.message = str(self)


class EditSyntaxError(EditorError):
    """An edit that cannot be parsed; nothing was tried on the file."""

    def __init__(self, code: SyntaxCode, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.code: SyntaxCode = code
        self.message = message
        self.suggestion = suggestion


NOT_APPLICABLE = "not applicable"
SHOWN = 5
_MAX_CHARS = 120


def format_span(start: int, end: int) -> str:
    """Return 'line 3' or 'lines 3-5' for lines [start, end), which count from 0."""
    return f"line {end}" if end <= start + 1 else f"lines {start + 1}-{end}"


def format_list(what: str, found: Sequence[str]) -> str:
    """Return 'what: a, b (and n more)', '' if there are none. A long line is cut."""
    if not found:
        return ""
    short = [text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…" for text in found[:SHOWN]]
    more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
    return f"{what}: {', '.join(short)}{more}"
