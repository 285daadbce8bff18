"""A pool whose slots hold a fingerprint of root and tokens so far, where the real pool holds keys and values.

Keys and values depend on all tokens before theirs. So does the fingerprint, and it shows a right token after a wrong
prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from engine.kv_cache import KVPages

GARBAGE = -7


def fingerprints(root: bytes, token_ids: Sequence[int]) -> list[int]:
    """Of each prefix that ends with a token."""
    return list(accumulate(token_ids, lambda before, token_id: hash((before, token_id)), initial=hash(root)))[1:]


class FakePool:
    """Runs sequences over a `KVPages`, does its copies, and checks every slot that a page table points to."""

    def __init__(self, pages: KVPages) -> None:
        self.pages = pages
        self.slots = [GARBAGE] * (pages.num_pages * pages.page_size)
        self.token_ids: dict[int, list[int]] = {}  # what is committed of each open sequence
        self.roots: dict[int, bytes] = {}

    def open(self, sequence_id: int, prompt: Sequence[int], root: bytes = b"root") -> int:
        cached = self.pages.open(sequence_id, prompt, root)
        self.token_ids[sequence_id] = list(prompt[:cached])
        self.roots[sequence_id] = root
        return cached

    def run(self, sequence_id: int, new_ids: Sequence[int], num_rejected: int = 0) -> bool:
        """One pass over `new_ids` and so many rejected draft tokens; False where there are no pages for it."""
        committed = self.token_ids[sequence_id]
        if not self.pages.grow(sequence_id, len(committed) + len(new_ids) + num_rejected):
            return False
        self.do_copies()
        rows = fingerprints(self.roots[sequence_id], [*committed, *new_ids, *[GARBAGE] * num_rejected])
        for position in range(len(committed), len(rows)):
            self.slots[self._slot(sequence_id, position)] = rows[position]
        self.check(sequence_id)
        self.pages.commit(sequence_id, new_ids)
        committed += new_ids
        return True

    def serve(self, sequence_id: int, prompt: Sequence[int], root: bytes = b"root", retain_s: float = 0.0) -> int:
        """A whole life: open, run in one pass, close; returns how much was cached."""
        cached = self.open(sequence_id, prompt, root)
        assert self.run(sequence_id, prompt[cached:])
        self.close(sequence_id, retain_s)
        return cached

    def close(self, sequence_id: int, retain_s: float = 0.0) -> None:
        self.pages.close(sequence_id, retain_s)
        del self.token_ids[sequence_id], self.roots[sequence_id]

    def do_copies(self) -> None:
        size = self.pages.page_size
        for copy in self.pages.take_copies():
            source, target = copy.source * size, copy.target * size
            self.slots[target : target + copy.num_tokens] = self.slots[source : source + copy.num_tokens]

    def check_all(self) -> None:
        """Every table points to the right tokens, and the parts add up."""
        self.do_copies()
        for sequence_id in self.token_ids:
            self.check(sequence_id)
        self.pages.check_integrity()

    def check(self, sequence_id: int) -> None:
        """All that the next token sees is there."""
        expected = fingerprints(self.roots[sequence_id], self.token_ids[sequence_id])
        assert self.pages.num_tokens(sequence_id) == len(expected)
        first = max(0, len(expected) - self.pages.window + 1) if self.pages.window else 0
        for position in range(first, len(expected)):
            assert self.slots[self._slot(sequence_id, position)] == expected[position], (
                f"token {position} has the KV of another prefix"
            )

    def _slot(self, sequence_id: int, position: int) -> int:
        page = self.pages.page_table(sequence_id)[position // self.pages.page_size]
        assert page >= 0, f"the page of token {position} has been given back"
        return page * self.pages.page_size + position % self.pages.page_size
