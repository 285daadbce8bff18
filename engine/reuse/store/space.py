"""What is stored under one root: nothing in it is found from another."""

from __future__ import annotations

from engine.reuse.store.anchors import Anchors
from engine.reuse.store.entry import Entry


class Space:
    """Its k-grams, and its entries by record and the position that they begin or end at."""

    def __init__(self) -> None:
        self.anchors = Anchors()
        self.by_start: dict[tuple[int, int], Entry] = {}
        self.by_end: dict[tuple[int, int], Entry] = {}
        self.num_entries = 0

    def link(self, entry: Entry) -> None:
        """Join an entry to those that adjoin it in its record; of two for one position, the first stays joined."""
        self.num_entries += 1
        before, after = self.by_end.get((entry.record, entry.start)), self.by_start.get((entry.record, entry.end))
        if before is not None and before.after is None:
            entry.before, before.after = before, entry
        if after is not None and after.before is None:
            entry.after, after.before = after, entry
        self.by_start.setdefault((entry.record, entry.start), entry)
        self.by_end.setdefault((entry.record, entry.end), entry)

    def unlink(self, entry: Entry) -> None:
        """Take an entry out from between its neighbours."""
        self.num_entries -= 1
        if entry.before is not None:
            entry.before.after = None
        if entry.after is not None:
            entry.after.before = None
        entry.before = entry.after = None
        for entries, position in ((self.by_start, entry.start), (self.by_end, entry.end)):
            if entries.get((entry.record, position)) is entry:
                del entries[entry.record, position]
