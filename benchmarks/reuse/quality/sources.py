"""Stretches of real Python files, the standard library's, for probes to edit: whole top-level statements, 1,000 to
2,000 tokens of them."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random

FEWEST_CHARS, MOST_CHARS = 4_000, 6_500
"""About 1,000 to 1,900 tokens."""

_SHORTEST_FILE = 6_000

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Stretch:
    """A run of a file's top-level statements, a Python text of its own; ASCII, so that characters are bytes."""

    file_name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The text parsed."""
        return ast.parse(self.text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *accumulate(len(line) for line in self.text.splitlines(keepends=True))]

    def start(self, node: ast.stmt | ast.expr | ast.arg) -> int:
        """Where a node begins, in characters; a decorated definition where its `def` or `class` stands."""
        return self._line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.stmt | ast.expr | ast.arg) -> int:
        """Where a node ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def line_start(self, position: int) -> int:
        """Where the line of a position begins."""
        return self.text.rfind("\n", 0, position) + 1

    def replaced(self, start: int, end: int, new: str) -> str:
        """The text with [start, end) replaced."""
        return self.text[:start] + new + self.text[end:]

    def is_middle(self, position: int) -> bool:
        """Whether an edit there is one in the middle: a prefix to keep before it, and much behind it."""
        return 0.15 <= position / len(self.text) <= 0.65

    def functions(self) -> list[ast.FunctionDef]:
        """The functions of the top level."""
        return [node for node in self.tree.body if isinstance(node, ast.FunctionDef)]

    def methods(self) -> list[ast.FunctionDef]:
        """The functions of the top level and those of its classes."""
        inner = [node for owner in self.classes() for node in owner.body if isinstance(node, ast.FunctionDef)]
        return self.functions() + inner

    def classes(self) -> list[ast.ClassDef]:
        """The classes of the top level."""
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def whole(self, node: ast.stmt) -> tuple[int, int]:
        """Whole lines of a definition, its decorators among them."""
        decorators = getattr(node, "decorator_list", [])
        first = min([self.start(node), *(self.start(each) for each in decorators)])
        return self.line_start(first), self.end(node) + 1


def stretches(random: Random, folder: Path | None = None) -> Iterator[Stretch]:
    """Stretches of random files, for ever; `folder` holds them, by default the standard library of this Python."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    files = _files(folder)
    while files:
        file = random.choice(files)
        pieces = _pieces(file)
        text = _run_of(pieces, random) if pieces else None
        if text is not None:
            yield Stretch(file.relative_to(folder).as_posix(), text)


@lru_cache(maxsize=4)
def _files(folder: Path) -> list[Path]:
    """Python files of the folder and of its packages, without tests and what is generated."""
    found = [*folder.glob("*.py"), *folder.glob("*/*.py")]
    left_out = {"test", "tests", "idlelib", "lib2to3", "site-packages", "encodings", "__pycache__", "pydoc_data"}
    return sorted(file for file in found if file.parent.name not in left_out and file.stat().st_size >= _SHORTEST_FILE)


@lru_cache(maxsize=1024)
def _pieces(file: Path) -> tuple[str, ...]:
    """The file cut before each top-level statement, comments and decorators with the statement that they belong to."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if not text.isascii() or "\t" in text or "\r" in text or "\f" in text:
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes of another's file
            body = ast.parse(text).body
    except SyntaxError:
        return ()
    lines = text.splitlines(keepends=True)
    ends = [node.end_lineno for node in body if node.end_lineno is not None]
    pieces, first = [], 0
    for end in ends:
        pieces.append("".join(lines[first:end]))
        first = max(first, end)
    return tuple(pieces)


def _run_of(pieces: tuple[str, ...], random: Random) -> str | None:
    """Neighbouring pieces of a random length from a random place on; None where they are too long or too few."""
    wanted = random.randint(FEWEST_CHARS, MOST_CHARS)
    text = ""
    for piece in pieces[random.randrange(len(pieces)) :]:
        if len(text) + len(piece) > wanted:
            break
        text += piece
    text = f"{text.strip(chr(10))}\n"
    return text if len(text) >= FEWEST_CHARS else None
