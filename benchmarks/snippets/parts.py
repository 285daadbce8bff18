"""The fixed test part of the real edits: what no rule is shaped on and no weight is learned from.

All edits of one file are in one part. `test_part.txt` lists the hashes of what is in the test part: whole repositories,
and of one repository a third of its files. It was committed before the reader that it measures, and stays as it is.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")

TEST_WORDING = "... (omitted for brevity) ..."
"""A marker wording that only made snippets of the test part have."""
TEST_LAYOUT = "numbered"
"""A layout that only made snippets of the test part have: steps of a list, each with its fence."""

_LIST = Path(__file__).with_name("test_part.txt")


def part_of(repo: str, path: str) -> Part:
    """Tell the part of an edit by its repository (`owner/name`) and its file's path there."""
    return "test" if not _hashes().isdisjoint((hash_of(repo), hash_of(f"{repo}\n{path}"))) else "train"


def hash_of(name: str) -> str:
    """Return the hash that a repository, or a repository and a path with a newline between, is listed by."""
    return sha256(name.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _hashes() -> frozenset[str]:
    lines = _LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[0] for line in lines if line and not line.startswith("#"))
