"""A pool whose token slots hold token ids where the real one holds keys and values, written as the engine would."""

from __future__ import annotations

from collections.abc import Sequence

from engine.paging import KVPages

GARBAGE = -7


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
        for offset, token_id in enumerate([*new_ids, *[GARBAGE] * num_rejected]):
            self.slots[self._slot(sequence_id, len(committed) + offset)] = token_id
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
        expected = self.token_ids[sequence_id]
        assert self.pages.num_tokens(sequence_id) == len(expected)
        first = max(0, len(expected) - self.pages.window + 1) if self.pages.window else 0
        for position in range(first, len(expected)):
            assert self.slots[self._slot(sequence_id, position)] == expected[position], f"token {position} is another's"

    def _slot(self, sequence_id: int, position: int) -> int:
        page = self.pages.page_table(sequence_id)[position // self.pages.page_size]
        assert page >= 0, f"the page of token {position} has been given back"
        return page * self.pages.page_size + position % self.pages.page_size
