"""Random orders of opening, running, closing and waiting: every table points to the right KV, and no page leaks.

The model to compare with is the list of all token sequences that were ever committed. Hypothesis looks for short
failures; long random walks, which reuse more, look for the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kv_cache import KVPages
from engine.kv_cache.prefix_cache import page_key
from tests.engine.kv_cache.fake_pool import FakePool

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)  # two ids, so that much is common
RETENTION = st.sampled_from([0.0, 0.0, 3.0, 10.0])


def num_common(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


@contextmanager
def page_keys(collide: bool) -> Iterator[None]:
    """Of keys that collide there are five."""
    patched = (lambda parent, ids: bytes([page_key(parent, ids)[0] % 5])) if collide else page_key
    with mock.patch("engine.kv_cache.prefix_cache.page_key", patched):
        yield


class CheckedPages:
    """A `FakePool` beside the list of what was committed under which root; the one is held to the other."""

    def __init__(self, num_pages: int, page_size: int, window: int | None, collide: bool) -> None:
        self.now = 0.0
        self.pool = FakePool(KVPages(num_pages, page_size, window=window, clock=lambda: self.now))
        self.pages = self.pool.pages
        self.history: list[tuple[bytes, list[int]]] = []  # the lists of open sequences grow
        self.todo: dict[int, list[int]] = {}  # prompt and answer of each open sequence
        self.num_opened = 0
        self.lossless = not collide

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
            assert before == (list(self.pages.page_table(sequence_id)), self.pages.stats())

    def close(self, which: int, retain_s: float) -> None:
        sequence_id = self.pick(which)
        self.pool.close(sequence_id, retain_s)
        del self.todo[sequence_id]

    def forget(self) -> None:
        self.lossless = False
        self.pages.forget()

    def end(self) -> None:
        """Nothing is left of anything."""
        while self.todo:
            self.close(0, 0.0)
        assert self.pages.num_available == self.pages.num_pages
        self.pages.forget()
        self.pages.check_integrity()
        assert self.pages.stats().num_free == self.pages.num_pages


class KVPagesMachine(RuleBasedStateMachine):
    """Short failures."""

    @initialize(
        num_pages=st.sampled_from([3, 6, 12, 40, 400]),
        page_size=st.integers(1, 5),
        window=st.none() | st.integers(1, 12),
        collide=st.sampled_from([False, False, False, True]),
    )
    def start(self, num_pages: int, page_size: int, window: int | None, collide: bool) -> None:
        self.keys = page_keys(collide)
        self.keys.__enter__()
        self.checked = CheckedPages(num_pages, page_size, window, collide)

    def teardown(self) -> None:
        if hasattr(self, "checked"):
            self.checked.end()
            self.keys.__exit__(None, None, None)

    @rule(which=st.integers(0, 50), share=st.integers(0, 30), tail=TOKENS, root=st.sampled_from([b"a", b"a", b"b"]))
    def open(self, which: int, share: int, tail: list[int], root: bytes) -> None:
        self.checked.open(which, share, tail, root)

    @precondition(lambda self: self.checked.todo)
    @rule(which=st.integers(0, 50), count=st.integers(1, 12), num_rejected=st.integers(0, 6), more=TOKENS)
    def run(self, which: int, count: int, num_rejected: int, more: list[int]) -> None:
        self.checked.run(which, count, num_rejected, more)

    @precondition(lambda self: self.checked.todo)
    @rule(which=st.integers(0, 50), retain_s=RETENTION)
    def close(self, which: int, retain_s: float) -> None:
        self.checked.close(which, retain_s)

    @rule(seconds=st.sampled_from([1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.checked.now += seconds

    @rule()
    def forget(self) -> None:
        self.checked.forget()

    @precondition(lambda self: hasattr(self, "checked"))
    @invariant()
    def parts_add_up(self) -> None:
        self.checked.pages.check_integrity()

    @rule()
    def check_every_slot(self) -> None:
        """Not an invariant, so that copies stay queued over several steps."""
        self.checked.pool.check_all()


TestKVPages = KVPagesMachine.TestCase
TestKVPages.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(100))
def test_a_long_random_walk(seed: int) -> None:
    dice = random.Random(seed)
    window, collide = dice.choice([None, None, 1, 2, 4, 7, 12, 20]), seed % 5 == 0
    with page_keys(collide):
        checked = CheckedPages(dice.choice([4, 6, 12, 12, 40, 400]), dice.randint(1, 5), window, collide)
        for _ in range(150):
            checked.now += dice.random()
            step, which = dice.random(), dice.randrange(50)
            if step < 0.3 or not checked.todo:
                tail = [dice.randint(0, 1) for _ in range(dice.randint(1, 6))]
                checked.open(which, dice.randint(0, 60), tail, dice.choice([b"a", b"a", b"a", b"b"]))
            elif step < 0.75:
                checked.run(which, dice.randint(1, 12), dice.choice([0, 0, 4]), [dice.randint(0, 1)])
            elif step < 0.95 or collide:
                checked.close(which, dice.choice([0.0, 0.0, 2.0, 9.0]))
            elif step < 0.99:
                checked.pool.check_all()
            elif seed % 2:
                checked.forget()
            checked.pages.check_integrity()
        checked.end()
