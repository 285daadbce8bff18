"""Which paths of a workspace are left out: git's ignore rules at every level, and patterns of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class IgnoreRules:
    """The rules of one workspace; thread-safe. `.gitignore` files are compiled once, and again when they changed.

    `exclude` are lines as of a `.gitignore` that outranks all others ('!kept/' brings back what git ignores).
    With `include`, only files that match one of these patterns, or lie in a folder that does, are in.
    `.git` is out at every level.
    """

    def __init__(
        self, root: Path, *, include: Sequence[str] = (), exclude: Sequence[str] = (), use_git: bool = True
    ) -> None:
        raise NotImplementedError

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether a relative POSIX path is out, by itself or with a folder above it."""
        raise NotImplementedError

    def governed_by(self, path: str) -> str | None:
        """The folder ('' is the root) whose rules the file at this path sets; None for other files."""
        raise NotImplementedError

    def forget(self, folder: str = "") -> None:
        """Read the rules of this folder and of those below it anew when they are next asked for."""
        raise NotImplementedError
