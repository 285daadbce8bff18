"""The placeholder lines that models write for the lines they leave out, in the comment syntax of the language."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from editor.languages import language_of

WORDINGS = (
    "... existing code ...",
    "... existing code ...",
    "... rest of code ...",
    "... unchanged ...",
    "... rest of the file remains the same ...",
    "... (existing code) ...",
    "rest of the code unchanged",
    "...",
)
"""What a marker says; the wording that services ask for is the most frequent one."""
PLAIN = "..."
"""A marker without a comment."""

_LINE_COMMENTS: Mapping[str, tuple[str, str]] = {
    "#": ("# ", ""),
    "//": ("// ", ""),
    "--": ("-- ", ""),
    "/*": ("/* ", " */"),
    "<!--": ("<!-- ", " -->"),
}
_COMMENT_OF: Mapping[str, str] = {
    **dict.fromkeys(("python", "ruby", "yaml", "toml", "bash"), "#"),
    **dict.fromkeys(
        ("javascript", "typescript", "tsx", "go", "rust", "java", "c", "cpp", "csharp", "php", "json"), "//"
    ),
    **dict.fromkeys(("html", "markdown"), "<!--"),
    "css": "/*",
    "sql": "--",
}
_INDENTED = frozenset({"python", "yaml", "markdown"})
_SHARE_PLAIN = 0.1
_SHARE_VARIED = 0.25


class Marker:
    """The markers of one snippet: mostly one wording throughout, as a model writes; `rng` decides."""

    def __init__(self, path: str, rng: Random) -> None:
        self._language = language_of(path) or ""
        self._rng = rng
        self._varied = rng.random() < _SHARE_VARIED
        self._plain = rng.random() < _SHARE_PLAIN or self._language not in _COMMENT_OF
        self._wording = rng.choice(WORDINGS)

    def line(self, indent: str) -> str:
        """Return the next marker, indented.

        Plain dots stand at column 0 where indentation is syntax: deeper they would be a statement.
        """
        if self._plain:
            return PLAIN if self._language in _INDENTED or not self._language else indent + PLAIN
        wording = self._rng.choice(WORDINGS) if self._varied else self._wording
        before, after = _LINE_COMMENTS[_COMMENT_OF[self._language]]
        return f"{indent}{before}{wording}{after}"
