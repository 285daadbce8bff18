"""A pool whose token slots hold token ids where the real one holds keys and values, written as the engine would."""

from __future__ import annotations

from collections.abc import Sequence

from engine.paging import NO_PAGE, KVPages

POISON = -7


class FakePool:
    """Runs sequences over a `KVPages`, does its copies, and checks every slot that a page table points to."""

    def __init__(self, pages: KVPages) -> None:
        self.pages = pages
        self.slots = [POISON] * (pages.num_pages * pages.page_size)
        self.token_ids: dict[int, list[int]] = {}  # what is committed of each open sequence
        self.roots: dict[int, bytes] = {}

    def open(self, sequence_id: int, prompt: Sequence[int], root: bytes) -> int:
        expected = self.pages.num_cached(prompt, root)
        cached = self.pages.open(sequence_id, prompt, root)
        assert cached <= expected
        self.token_ids[sequence_id] = list(prompt[:cached])
        self.roots[sequence_id] = root
        return cached

    def run(self, sequence_id: int, new_ids: Sequence[int], num_rejected: int = 0) -> bool:
        """One pass over `new_ids` and so many rejected draft tokens; False where there are no pages for it."""
        committed = self.token_ids[sequence_id]
        if not self.pages.grow(sequence_id, len(committed) + len(new_ids) + num_rejected):
            return False
        self.do_copies()
        table = self.pages.page_table(sequence_id)
        for offset, token_id in enumerate([*new_ids, *[POISON] * num_rejected]):
            self.slots[self._slot(table, len(committed) + offset)] = token_id
        self.check(sequence_id, len(committed) + len(new_ids))
        self.pages.commit(sequence_id, new_ids)
        committed += new_ids
        return True

    def close(self, sequence_id: int, retain_s: float = 0.0) -> None:
        self.pages.close(sequence_id, retain_s)
        del self.token_ids[sequence_id], self.roots[sequence_id]

    def do_copies(self) -> None:
        size = self.pages.page_size
        for copy in self.pages.take_copies():
            start, end = copy.source * size, copy.source * size + copy.num_tokens
            self.slots[copy.target * size : copy.target * size + copy.num_tokens] = self.slots[start:end]

    def check_all(self) -> None:
        """Every table points to the right tokens, and the parts add up."""
        self.pages.check_integrity()
        self.do_copies()
        for sequence_id in self.token_ids:
            self.check(sequence_id)
        self.pages.check_integrity()

    def check(self, sequence_id: int, num_written: int = 0) -> None:
        """What the next pass will read is there: all, or what lies in the window."""
        expected = self.token_ids[sequence_id]
        table = self.pages.page_table(sequence_id)
        assert self.pages.num_tokens(sequence_id) == len(expected)
        window = self.pages.window or len(expected) + 1
        for position in range(max(0, len(expected) - window + 1), len(expected)):
            assert self.slots[self._slot(table, position)] == expected[position], f"wrong KV at token {position}"

    def _slot(self, table: Sequence[int], position: int) -> int:
        page = table[position // self.pages.page_size]
        assert page != NO_PAGE, f"the page of token {position} has been given back"
        return page * self.pages.page_size + position % self.pages.page_size
