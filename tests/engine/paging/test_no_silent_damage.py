"""Any order of opening, running, closing, waiting: every table points to the right KV, and no page leaks.

The slow and obvious model is the list of all token sequences that were ever committed.
"""

from __future__ import annotations

from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.paging import KVPages
from engine.paging.keys import page_key
from tests.engine.paging.fake_pool import FakePool

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)  # two ids, so that much is common
RETENTION = st.sampled_from([0.0, 0.0, 3.0, 10.0])


def num_common(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


class KVPagesMachine(RuleBasedStateMachine):
    """A `FakePool`, small or roomy, beside the list of what was committed under which root."""

    @initialize(
        num_pages=st.sampled_from([3, 6, 12, 40, 400]),
        page_size=st.integers(1, 5),
        window=st.none() | st.integers(1, 12),
        collide=st.sampled_from([False, False, False, True]),
    )
    def start(self, num_pages: int, page_size: int, window: int | None, collide: bool) -> None:
        """Of keys that collide there are five."""
        self.keys = mock.patch(
            "engine.paging.prefix_cache.page_key",
            lambda parent, ids: bytes([page_key(parent, ids)[0] % 5]) if collide else page_key(parent, ids),
        )
        self.keys.start()
        self.now = 0.0
        self.pool = FakePool(KVPages(num_pages, page_size, window=window, clock=lambda: self.now))
        self.pages = self.pool.pages
        self.history: list[tuple[bytes, list[int]]] = []  # the lists of open sequences grow
        self.todo: dict[int, list[int]] = {}  # prompt and answer of each open sequence
        self.num_opened = 0
        self.lossless = not collide

    def teardown(self) -> None:
        if not hasattr(self, "keys"):
            return
        for sequence_id in list(self.todo):
            self.pool.close(sequence_id)
        assert self.pages.num_available == self.pages.num_pages
        self.pages.forget()
        self.pages.check_integrity()
        assert self.pages.stats().num_free == self.pages.num_pages
        self.keys.stop()

    def longest_common(self, prompt: list[int], root: bytes, everything: bool) -> int:
        """With any sequence under this root; of open ones only the full pages, if not everything."""
        size, open_lists = self.pages.page_size, list(map(id, self.pool.token_ids.values()))
        lengths = [0]
        for other_root, ids in self.history:
            if other_root == root:
                end = len(ids) // size * size if id(ids) in open_lists and not everything else len(ids)
                lengths.append(num_common(prompt[:-1], ids[:end]))
        return max(lengths)

    def pick(self, which: int) -> int:
        return list(self.todo)[which % len(self.todo)]

    @rule(which=st.integers(0, 50), share=st.integers(0, 30), tail=TOKENS, root=st.sampled_from([b"a", b"a", b"b"]))
    def open(self, which: int, share: int, tail: list[int], root: bytes) -> None:
        head = self.history[which % len(self.history)][1][:share] if self.history else []
        prompt = head + tail
        expected = self.pages.num_cached(prompt, root)
        assert expected <= self.longest_common(prompt, root, everything=True)
        if self.lossless and not self.pages.stats().num_evicted:
            assert expected == self.longest_common(prompt, root, everything=False)
        roomy = self.pages.num_available > len(prompt) // self.pages.page_size + 2
        self.num_opened += 1
        cached = self.pool.open(self.num_opened, prompt, root)
        assert cached == expected or (not roomy and cached == expected // self.pages.page_size * self.pages.page_size)
        self.todo[self.num_opened] = prompt
        self.history.append((root, self.pool.token_ids[self.num_opened]))

    @precondition(lambda self: self.todo)
    @rule(which=st.integers(0, 50), count=st.integers(1, 12), num_rejected=st.integers(0, 6), more=TOKENS)
    def run(self, which: int, count: int, num_rejected: int, more: list[int]) -> None:
        sequence_id = self.pick(which)
        todo = self.todo[sequence_id]
        start = self.pages.num_tokens(sequence_id)
        if start == len(todo):
            todo += more
        new_ids = todo[start : start + count]
        before = list(self.pages.page_table(sequence_id)), self.pages.stats()
        needed = -(-(start + len(new_ids) + num_rejected) // self.pages.page_size) - len(before[0])
        fits = needed <= self.pages.num_available
        assert self.pool.run(sequence_id, new_ids, num_rejected) == fits
        if not fits:
            assert before == (self.pages.page_table(sequence_id), self.pages.stats())

    @precondition(lambda self: self.todo)
    @rule(which=st.integers(0, 50), retain_s=RETENTION)
    def close(self, which: int, retain_s: float) -> None:
        sequence_id = self.pick(which)
        self.pool.close(sequence_id, retain_s)
        del self.todo[sequence_id]

    @rule(seconds=st.sampled_from([1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def forget(self) -> None:
        self.lossless = False
        self.pages.forget()

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def parts_add_up(self) -> None:
        self.pages.check_integrity()

    @rule()
    def check_every_slot(self) -> None:
        """Not an invariant, so that copies stay queued over several steps."""
        self.pool.check_all()


TestKVPages = KVPagesMachine.TestCase
TestKVPages.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
