"""The placeholder lines that models write for the lines they leave out, in the comment syntax of the language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from editor.grammars import find_language

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
ODD_WORDINGS = (
    "...",
    "... (same as before)",
    "... (unchanged)",
    "... body unchanged",
    "... rest unchanged",
    "... keep everything above ...",
    "... keep the existing code as is",
    "... other members stay as they are ...",
    "... imports and earlier helpers unchanged ...",
    "... rest of the function stays the same ...",
    "... remaining lines unchanged until here ...",
    "...other entries as before...",
    "… unchanged …",
    "[... rest of the file unchanged ...]",
    "(same as before)",
    "rest unchanged",
)
"""What markers say in the words of models that were not asked for any."""
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

    def __init__(self, path: str, rng: Random, wordings: Sequence[str] = WORDINGS) -> None:
        self._language = find_language(path) or ""
        self._rng = rng
        self._varied = rng.random() < _SHARE_VARIED
        self._plain = rng.random() < _SHARE_PLAIN or self._language not in _COMMENT_OF
        self._wordings = wordings
        self._wording = rng.choice(wordings)

    def line(self, indent: str) -> str:
        """Return the next marker, indented.

        Plain dots stand at column 0 where indentation is syntax: deeper they would be a statement.
        """
        if self._plain:
            return PLAIN if self._language in _INDENTED or not self._language else indent + PLAIN
        wording = self._rng.choice(self._wordings) if self._varied else self._wording
        before, after = _LINE_COMMENTS[_COMMENT_OF[self._language]]
        return f"{indent}{before}{wording}{after}"


def comment(path: str, words: str) -> str | None:
    """Return the words as a comment line of the file's language, None where that is not known."""
    syntax = _COMMENT_OF.get(find_language(path) or "")
    if syntax is None:
        return None
    before, after = _LINE_COMMENTS[syntax]
    return f"{before}{words}{after}"
