"""Repositories of real text: sources that lie on this machine, written into folders of any number of files."""

from __future__ import annotations

import os
import random
import site
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SUFFIXES = (".py", ".pyi", ".c", ".h", ".cpp", ".js", ".ts", ".css", ".html", ".json", ".md", ".rst", ".toml", ".yaml")
LARGEST = 100_000
"""Bytes of a file that is taken: longer ones are tables more often than not."""

FILES_A_FOLDER = 40


@dataclass(frozen=True, slots=True)
class Sources:
    """The text files of the standard library and of the installed packages, in a seeded order."""

    paths: tuple[Path, ...]

    @classmethod
    def of_this_machine(cls, seed: int) -> Sources:
        """All there are; raises ValueError where there are none."""
        paths = list(_found())
        if not paths:
            raise ValueError("no sources were found in the standard library or the installed packages")
        random.Random(seed).shuffle(paths)
        return cls(tuple(paths))

    def texts(self, count: int, seed: int) -> Iterator[tuple[str, str]]:
        """`count` different texts, each with the suffix of its file.

        They are the files as they are, and when there are no more, parts of them: from a line to another, drawn by the
        seed, below a first line that tells it apart.
        """
        drawn = random.Random(seed)
        files = [(path.suffix, text) for path in self.paths[:count] if (text := _text(path))]
        yield from files
        for number in range(len(files), count):
            suffix, text = files[number % len(files)]
            lines = text.splitlines(keepends=True)
            first = drawn.randrange(max(1, len(lines) // 2))
            yield suffix, f"# part {number}\n" + "".join(lines[first : first + drawn.randint(20, 600)])

    def long_text(self, num_lines: int) -> str:
        """Python sources behind one another, cut to so many lines."""
        lines: list[str] = []
        for path in self.paths:
            if path.suffix == ".py" and len(lines) < num_lines:
                lines += (_text(path) or "").splitlines(keepends=True)
        return "".join(lines[:num_lines])


def write_repository(folder: Path, texts: Sequence[tuple[str, str]]) -> None:
    """Write the texts below a folder, in folders of folders."""
    for number, (suffix, text) in enumerate(texts):
        place, file = divmod(number, FILES_A_FOLDER)
        path = folder / f"part_{place // FILES_A_FOLDER}" / f"package_{place}" / f"file_{file}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def git(folder: Path, *arguments: str) -> None:
    """Run git there, without the settings of whoever runs this."""
    identity = ["-c", "user.name=hunk", "-c", "user.email=hunk@localhost", "-c", "gc.auto=0"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@cache
def _found() -> tuple[Path, ...]:
    roots = {Path(sysconfig.get_path("stdlib")), *map(Path, site.getsitepackages())}
    found: dict[tuple[str, int], Path] = {}
    for root in sorted(roots):
        for folder, folders, names in os.walk(root):  # a quarter of the time of `rglob`
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in SUFFIXES and path.is_file() and 0 < (size := path.stat().st_size) <= LARGEST:
                    found.setdefault((name, size), path)  # packages vendor one another
    return tuple(found.values())


def _text(path: Path) -> str | None:
    """The text of a file; None where it is none."""
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text
