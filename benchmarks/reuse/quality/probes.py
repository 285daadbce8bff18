"""Probes of every kind from real files, the same for the same seed and the same files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random

from benchmarks.reuse.quality import bystanders, conclusions, lookups
from benchmarks.reuse.quality.probe import Probe
from benchmarks.reuse.quality.sources import Stretch, stretches

Maker = Callable[[Stretch, Random], Probe | None]

MAKERS: dict[str, Maker] = {
    "constant": lookups.constant,
    "default": lookups.default,
    "renamed": lookups.renamed,
    "derived": conclusions.derived,
    "computed": conclusions.computed,
    "caller": conclusions.caller,
    "type": conclusions.kind_of,
    "deleted": conclusions.deleted,
    "defined": conclusions.defined,
    "used": conclusions.used,
    "owner": conclusions.owner,
    "repeat": bystanders.repeat,
    "go on": bystanders.go_on,
}
"""What makes a probe of a stretch of a file, by kind; None where it has no place for one."""

MOST_A_FILE = 3
"""Probes of one kind from one file."""

_MOST_TRIES = 4_000


def make_probes(kind: str, count: int, seed: int, folder: Path | None = None) -> list[Probe]:
    """Up to `count` probes of a kind; fewer where the files have no more places for them.

    `folder` holds the Python files that they are made from, by default this Python's standard library.
    """
    random = Random(f"{seed} {kind}")
    made: list[Probe] = []
    asked: set[tuple[str, str]] = set()
    by_file: Counter[str] = Counter()
    for stretch in islice(stretches(random, folder), _MOST_TRIES):
        if len(made) >= count:
            break
        if by_file[stretch.file_name] >= MOST_A_FILE:
            continue
        try:
            probe = MAKERS[kind](stretch, random)
        except ValueError:  # the edit and the answer do not fit together here
            continue
        if probe is not None and (probe.file_name, probe.question) not in asked:
            asked.add((probe.file_name, probe.question))
            made.append(probe)
            by_file[stretch.file_name] += 1
    return made
