"""Remembers what a write of files is about to do, so that the next start can finish or undo one that was broken off.

<folder>/<hash of the root>/         is locked by whoever writes below that root
                            <id>.json  of a write that goes on, or was broken off

The folder lies apart from the files: what is found in a repository was put there by anybody, and is no order to rename
files. A record names only paths below its root, and what is done about it is done by descriptors (`confined.py`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent_runtime.files.locking import locked

LOG = logging.getLogger("hunk.journal")

VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """What becomes of one real path: from what its mark is `before` to what it is `after` (`Confined.mark`).

    In the same folder `staged` holds the new bytes until they are renamed, and `kept` the old ones from then on until
    all is done; "" where there are none.
    """

    real: str
    before: str
    after: str
    staged: str
    kept: str


@dataclass(frozen=True, slots=True)
class Record:
    """One write. `committing`: all new bytes are on the disk, and names may have been changed.

    `folders` were not there before, the outermost first.
    """

    id: str
    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    committing: bool = False


class Journal:
    """The records of writes below one root."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder / sha256(os.fsencode(root)).hexdigest()[:32]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all others from writing below the root; whatever record is there then is of one that was broken off.

        Raises OSError.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self._folder):
            yield

    def has_left(self) -> bool:
        """Whether there is a record: of a write that goes on, or was broken off."""
        return any(self._folder.glob("*.json"))

    def left(self) -> list[Record]:
        """All records; those that cannot be read are said, and forgotten."""
        records = []
        for path in self._folder.glob("*.json"):
            try:
                records.append(_record(path.stem, json.loads(path.read_bytes())))
            except (OSError, ValueError, TypeError, KeyError):
                LOG.error("the journal %s cannot be read: files of a write that was broken off may be half done", path)
                path.unlink(missing_ok=True)
        return records

    def note(self, record: Record, *, sync: bool) -> None:
        """Put a record in place of the one with its id, at once; with `sync` it lasts through a power cut, too."""
        path = self._folder / f"{record.id}.json"
        temporary = path.with_suffix(".new")
        with temporary.open("w", encoding="ascii") as file:
            json.dump({"version": VERSION, **asdict(record)}, file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def forget(self, record: Record) -> None:
        """The write is over."""
        (self._folder / f"{record.id}.json").unlink(missing_ok=True)


def _record(record_id: str, noted: dict[str, Any]) -> Record:
    if noted["version"] != VERSION or noted["id"] != record_id:
        raise ValueError
    entries = tuple(Entry(**entry) for entry in noted["entries"])
    return Record(record_id, entries, tuple(noted["folders"]), noted["committing"])
