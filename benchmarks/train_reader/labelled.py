"""Cases with all their readings, as features and labels; kept on disk, for to read them all takes minutes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import Case
from benchmarks.judging import same_but_blank_lines
from editor import codec
from editor.errors import EditorError
from editor.formats import parse
from editor.grammars import find_language
from editor.reader.reader import group_by_solid_lines
from editor.types import ParsedEdit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Reading(Protocol):
    """One way to read a snippet: the text that comes of it, and its features."""

    @property
    def text(self) -> str:
        """The whole text."""
        ...

    @property
    def features(self) -> Sequence[float]:
        """As many numbers as there are names of features."""
        ...


Read = Callable[[str, ParsedEdit, str | None, tuple[str, ...]], Sequence[Reading]]
"""Returns all readings of an edit of a text, before any order: text, edit, language, what is said beside the edit."""


@dataclass(frozen=True)
class Labelled:
    """One case with its readings: `features` a row each, `exact` and `modulo` (blank lines) which of them are right.

    Readings of the same number in `groups` differ in blank lines only.
    """

    id: str
    repo: str
    path: str
    style: str
    made: bool
    features: Floats
    exact: Bools
    modulo: Bools
    groups: Ints
    ms: float

    @property
    def group(self) -> str:
        """What must not be in two folds: a file, whatever folder it moved to."""
        return f"{self.repo}/{self.path.rpartition('/')[2]}"


def labelled(cases: Iterable[Case], read: Read, num_features: int, cache: Path | None) -> Iterator[Labelled]:
    """Yield the cases with their readings; `cache` is a file that holds those read before, and gets the others.

    The caller names the cache after all that the readings depend on (see `version_of`).
    """
    known = _kept(cache) if cache is not None else {}
    for case in cases:
        key = _key(case)
        found = known.get(key)
        if found is None:
            found = _read(case, read)
            if cache is not None:
                with cache.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, **found}) + "\n")
        yield Labelled(
            id=case.id,
            repo=case.repo,
            path=case.path,
            style=case.style,
            made=case.shape == "made",
            features=np.array(found["features"], dtype=np.float64).reshape(-1, num_features),
            exact=np.array(found["exact"], dtype=np.bool_),
            modulo=np.array(found["modulo"], dtype=np.bool_),
            groups=np.array(found["groups"], dtype=np.int64),
            ms=found["ms"],
        )


def version_of(*folders: Path) -> str:
    """Return a hash of all Python and JSON files below some folders: readings of other code or weights are others."""
    digest = sha256()
    for folder in folders:
        for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.json")]):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _read(case: Case, read: Read) -> dict[str, Any]:
    source = codec.decode(case.original.encode())
    expected = codec.decode(case.expected.encode()).text
    started = time.perf_counter()
    try:
        found = read(source.text, parse(case.edit, "lazy", case.path), find_language(case.path), (case.instruction,))
    except EditorError:
        found = ()
    return {
        "ms": round((time.perf_counter() - started) * 1e3, 2),
        "features": [[round(float(value), 5) for value in one.features] for one in found],
        "exact": [one.text == expected for one in found],
        "modulo": [same_but_blank_lines(one.text, expected) for one in found],
        "groups": group_by_solid_lines([one.text for one in found]),
    }


def _key(case: Case) -> str:
    return sha256(
        "\0".join((case.path, case.original, case.edit, case.expected, case.instruction)).encode()
    ).hexdigest()


def _kept(cache: Path) -> dict[str, dict[str, Any]]:
    if not cache.exists():
        return {}
    with cache.open(encoding="utf-8") as file:
        return {row.pop("key"): row for row in map(json.loads, file)}
