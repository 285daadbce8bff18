"""The span index: what is found is stored, what is stored is found, against a list of all entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from engine.reuse import Match
from engine.reuse.span_entry import ANCHOR_EVERY, KGRAM_LEN, MULTIPLIER, kgram_hashes
from engine.reuse.span_index import SpanIndex, root_digest


@given(token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_kgram_hashes(token_ids: list[int]) -> None:
    expected = []
    for first in range(len(token_ids) - KGRAM_LEN + 1):
        value = 0
        for token_id in token_ids[first : first + KGRAM_LEN]:
            value = (value * MULTIPLIER + token_id + 1) % 2**64
        expected.append(value)
    assert kgram_hashes(np.array(token_ids, dtype=np.uint32)).tolist() == expected


ALWAYS_FOUND = KGRAM_LEN + ANCHOR_EVERY - 1
"""So many tokens in a row, stored in a row, are never overlooked whole."""

TokenIds = NDArray[np.uint32]
ROOTS = (b"one", b"two")


@dataclass(frozen=True)
class Kept:
    """What a slot holds, as the oracle knows it."""

    root: bytes
    token_id: int
    record: int
    position: int
    generation: int


def ids(*parts: object) -> TokenIds:
    return np.concatenate([np.atleast_1d(np.asarray(part, dtype=np.uint32)) for part in parts])


def text(seed: int, num_tokens: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 1000, num_tokens).astype(np.uint32)


def stored(index: SpanIndex, root: bytes, token_ids: TokenIds, generation: int = 0, start: int = 0) -> int:
    """Enter a text as a record of its own; returns the record."""
    record = index.new_record()
    slots = index.reserve(len(token_ids))
    assert slots is not None
    index.enter(root, token_ids, slots, generation, start, record)
    return record


def spans(matches: list[Match]) -> list[tuple[int, int, int, int]]:
    """Start, end, source and record of each match."""
    return [(each.start, each.end, each.source, each.record) for each in matches]


class Stored(RuleBasedStateMachine):
    """Random texts of few different tokens go in, in pieces, under two roots; what is found is held to a list of all.

    The list holds what can be found by itself: superseded entries are found beside their neighbours only.
    """

    @initialize(num_slots=st.integers(40, 900), seed=st.integers(0, 1 << 30), num_different=st.sampled_from([2, 3, 50]))
    def begin(self, num_slots: int, seed: int, num_different: int) -> None:
        self.index = SpanIndex(num_slots)
        self.random = np.random.default_rng(seed)
        self.num_different = num_different
        self.kept: dict[int, Kept] = {}  # by slot
        self.reserved: list[NDArray[np.int64]] = []
        self.texts: list[TokenIds] = []
        self.records: dict[int, tuple[bytes, int]] = {}  # root, and where the next token stands

    def some_text(self, num_tokens: int) -> TokenIds:
        """New tokens, and pieces of earlier texts."""
        parts = [self.random.integers(0, self.num_different, num_tokens).astype(np.uint32)]
        if self.texts and self.random.random() < 0.7:
            old = self.texts[self.random.integers(len(self.texts))]
            first = int(self.random.integers(len(old)))
            parts = [parts[0][: num_tokens // 4], old[first : first + num_tokens], parts[0][num_tokens // 4 :]]
        return np.concatenate(parts)[:num_tokens]

    @rule(
        num_tokens=st.integers(1, 330),
        root=st.sampled_from(ROOTS),
        generation=st.integers(0, 2),
        goes_on=st.booleans(),
        start=st.integers(0, 300),
    )
    def enter(self, num_tokens: int, root: bytes, generation: int, goes_on: bool, start: int) -> None:
        slots = self.index.reserve(num_tokens)
        self._forget_evicted()
        if slots is None:
            return
        record = self.index.new_record()
        if goes_on and self.records:
            record = int(self.random.choice(list(self.records)))
            root, start = self.records[record]
        token_ids = self.some_text(num_tokens)
        self.texts.append(token_ids)
        self.index.enter(root, token_ids, slots, generation, start, record)
        self.records[record] = (root, start + num_tokens)
        for slot, token_id, position in zip(slots.tolist(), token_ids.tolist(), range(start, 1 << 30), strict=False):
            self.kept[slot] = Kept(root, token_id, record, position, generation)

    @rule(num_tokens=st.integers(1, 400), root=st.sampled_from(ROOTS), first=st.integers(0, 40))
    def find(self, num_tokens: int, root: bytes, first: int) -> None:
        token_ids = self.some_text(num_tokens)
        covered = np.zeros(num_tokens, dtype=bool)
        end = first
        for match in self.index.find(root, token_ids, first):
            assert end <= match.start < match.end <= num_tokens - 1
            end = match.end
            covered[match.start : match.end] = True
            for distance, slot in enumerate(match.slots.tolist()):
                assert self.kept[slot] == Kept(
                    root,
                    int(token_ids[match.start + distance]),
                    match.record,
                    match.source + distance,
                    match.generation,
                )
        for place in range(first, num_tokens - 1 - ALWAYS_FOUND + 1):
            if not covered[place : place + ALWAYS_FOUND].any():
                assert not self._is_stored(root, token_ids[place : place + ALWAYS_FOUND]), "a run was overlooked"

    @rule(num_tokens=st.integers(1, 100))
    def reserve(self, num_tokens: int) -> None:
        slots = self.index.reserve(num_tokens)
        self._forget_evicted()
        if slots is not None:
            assert not set(slots.tolist()) & set(self.kept), "a slot is given out twice"
            self.reserved.append(slots)

    @precondition(lambda self: self.reserved)
    @rule()
    def give_back(self) -> None:
        self.index.give_back(self.reserved.pop())

    @invariant()
    def adds_up(self) -> None:
        self.index.check_integrity()
        assert self.index.stats().num_tokens == len(self.kept)

    def _forget_evicted(self) -> None:
        held = {slot for entry in self.index.list_entries() if entry.slots is not None for slot in entry.slots.tolist()}
        self.kept = {slot: kept for slot, kept in self.kept.items() if slot in held}

    def _is_stored(self, root: bytes, token_ids: TokenIds) -> bool:
        """Whether these stand in a row in a record, told slowly, in what can be found by itself."""
        texts: dict[int, dict[int, int]] = {}
        for entry in self.index.list_entries():
            if entry.root == root_digest(root) and not entry.is_superseded:
                own = texts.setdefault(entry.record, {})
                own.update(zip(range(entry.start, entry.end), entry.token_ids.tolist(), strict=True))
        wanted = token_ids.tolist()
        return any(
            [own.get(position + step) for step in range(len(wanted))] == wanted
            for own in texts.values()
            for position in own
        )


TestStored = Stored.TestCase
TestStored.settings = settings(max_examples=40, stateful_step_count=25)


@given(seed=st.integers(0, 1 << 30), num_different=st.sampled_from([1, 2, 20]), size=st.integers(1, 40))
def test_one_text_is_found_in_another_wherever_it_stands(seed: int, num_different: int, size: int) -> None:
    random = np.random.default_rng(seed)
    index = SpanIndex(1000)
    piece = random.integers(0, num_different, size + ALWAYS_FOUND).astype(np.uint32)
    before, behind = (random.integers(100, 200, int(num)).astype(np.uint32) for num in random.integers(0, 300, 2))
    stored(index, b"one", ids(before, piece, behind))
    prompt = ids(random.integers(200, 300, int(random.integers(0, 50))), piece, [500, 501])
    found = index.find(b"one", prompt, 0)
    assert sum(len(match.slots) for match in found) >= size
    assert index.find(b"two", prompt, 0) == []
    if num_different == 20:
        (match,) = found
        assert match.end - match.start == len(piece)
        assert match.source == len(before)


def test_a_moved_function_and_the_code_around_it_are_found() -> None:
    index = SpanIndex(3000)
    head, function, middle, tail = (text(seed, 300) for seed in range(4))
    record = stored(index, b"one", ids(head, function, middle, tail))
    found = index.find(b"one", ids(head, middle, function, tail, [1]), 0)
    assert spans(found) == [
        (0, 300, 0, record),
        (300, 600, 600, record),
        (600, 900, 300, record),
        (900, 1200, 900, record),
    ]


def test_lines_indented_elsewhere_are_found_behind_their_indentation() -> None:
    index = SpanIndex(3000)
    lines = [text(seed, 14) for seed in range(20)]
    stored(index, b"one", ids(*(ids([2001], line) for line in lines)))
    found = index.find(b"one", ids(*(ids([2002, 2003], line) for line in lines), [1]), 0)
    assert [(match.start, match.end) for match in found] == [(2 + 16 * at, 16 + 16 * at) for at in range(20)]


def test_a_match_goes_on_across_entries_that_were_entered_one_by_one() -> None:
    index = SpanIndex(3000)
    whole, record = text(0, 1500), index.new_record()
    for first, end in [(0, 3), (3, 7), (7, 515), (520, 1500), (515, 520)]:  # out of order, and shorter than a k-gram
        slots = index.reserve(end - first)
        assert slots is not None
        index.enter(b"one", whole[first:end], slots, 0, 40 + first, record)
        index.check_integrity()
    assert spans(index.find(b"one", whole, 0)) == [(0, 1499, 40, record)]
    assert spans(index.find(b"one", whole, 100)) == [(100, 1499, 140, record)]


def test_a_match_begins_where_the_run_does_on_either_side_of_an_entrys_border() -> None:
    index = SpanIndex(3000)
    record = stored(index, b"one", text(0, 700))
    for first in range(240, 272):
        (match,) = index.find(b"one", ids([2000, 2001], text(0, 700)[first:], [1]), 0)
        assert (match.start, match.source, match.end, match.record) == (2, first, 2 + 700 - first, record)


def test_a_match_has_one_generation() -> None:
    index = SpanIndex(3000)
    whole, record = text(0, 700), index.new_record()
    for first, end, generation in [(0, 300, 0), (300, 500, 1), (500, 700, 0)]:
        slots = index.reserve(end - first)
        assert slots is not None
        index.enter(b"one", whole[first:end], slots, generation, first, record)
    found = index.find(b"one", whole, 0)
    assert [(match.start, match.end, match.generation) for match in found] == [
        (0, 300, 0),
        (300, 500, 1),
        (500, 699, 0),
    ]
    assert {match.record for match in found} == {record}


def test_the_longest_goes_first_and_a_chance_match_before_it_takes_nothing_of_it() -> None:
    index = SpanIndex(3000)
    long, other = text(0, 500), text(1, 100)
    record = stored(index, b"one", long)
    chance = stored(index, b"one", ids(other[:40], long[:20], other[40:]))
    found = index.find(b"one", ids(other[20:40], long, [1]), 0)
    assert spans(found) == [(0, 20, 20, chance), (20, 520, 0, record)]


def test_of_equal_texts_the_exact_one_is_taken_then_the_newer() -> None:
    index = SpanIndex(3000)
    whole = text(0, 400)
    exact = stored(index, b"one", whole, generation=0)
    tainted = stored(index, b"one", whole, generation=1)
    assert [match.record for match in index.find(b"one", whole, 0)] == [exact]
    newer = stored(index, b"one", whole, generation=0)
    assert [match.record for match in index.find(b"one", whole, 0)] == [newer]
    assert {entry.record for entry in index.list_entries() if entry.is_superseded} == {exact, tainted}
    index.check_integrity()


def test_of_equal_runs_the_one_is_taken_whose_record_the_prompt_goes_on_in() -> None:
    index = SpanIndex(3000)
    first, shared, last = text(0, 100), text(1, 100), text(2, 100)
    record = stored(index, b"one", ids(first, [2000], shared, [2001], last))
    stored(index, b"one", ids([2002], shared, [2003]))
    found = index.find(b"one", ids(first, [2004], shared, [2005], last, [1]), 0)
    assert spans(found) == [(0, 100, 0, record), (101, 201, 101, record), (202, 302, 202, record)]


def test_superseded_entries_go_first_though_they_were_used() -> None:
    index = SpanIndex(1200)
    old, whole = stored(index, b"one", text(1, 256), generation=1), text(0, 512)
    tainted = stored(index, b"one", whole, generation=1)
    for _ in range(5):
        index.find(b"one", ids(whole, [1]), 0)
    exact = index.new_record()
    slots = index.reserve(300)
    assert slots is not None
    index.enter(b"one", ids(text(3, 20), whole[:256], text(4, 24)), slots, 0, 0, exact)
    assert [entry.record for entry in index.list_entries()][:1] == [tainted]
    assert index.reserve(300) is not None
    held = {(entry.record, entry.start) for entry in index.list_entries()}
    assert (tainted, 0) not in held
    assert {(old, 0), (tainted, 256), (exact, 0)} <= held
    index.check_integrity()


def test_what_a_record_repeats_does_not_supersede_itself() -> None:
    index = SpanIndex(3000)
    record, head, repeated = index.new_record(), text(0, 256), text(1, 256)
    for start, token_ids in ((0, head), (256, repeated), (512, ids([2000], repeated))):
        slots = index.reserve(len(token_ids))
        assert slots is not None
        index.enter(b"one", token_ids, slots, 0, start, record)
    assert not any(entry.is_superseded for entry in index.list_entries())
    assert spans(index.find(b"one", ids(head, repeated, [1]), 0)) == [(0, 512, 0, record)]


def test_what_is_left_around_an_evicted_entry_is_found() -> None:
    index = SpanIndex(3 * 256)
    whole = text(0, 768)
    record = stored(index, b"one", whole)
    for part in (whole[:257], whole[512:]):
        index.find(b"one", part, 0)
    slots = index.reserve(200)
    assert slots is not None
    index.check_integrity()
    assert spans(index.find(b"one", whole, 0)) == [(0, 256, 0, record), (512, 767, 512, record)]
    index.enter(b"one", whole[256:456], slots, 0, 256, record)
    index.check_integrity()
    assert spans(index.find(b"one", whole, 0)) == [(0, 456, 0, record), (512, 767, 512, record)]


def test_what_was_used_outlives_what_was_not_and_in_the_end_goes_too() -> None:
    index = SpanIndex(4 * 256)
    used = stored(index, b"one", text(0, 256))
    index.find(b"one", ids(text(0, 256), [1]), 0)
    left = []
    for turnover in range(1, 40):
        stored(index, b"one", text(turnover, 256))
        left.append(used in {entry.record for entry in index.list_entries()})
    assert left[5], "it was used, and the others were not"
    assert not left[-1], "one use does not keep it for ever"


def test_more_than_there_is_room_for_cannot_be_reserved_and_nothing_is_lost() -> None:
    index = SpanIndex(100)
    stored(index, b"one", text(0, 60))
    slots = index.reserve(30)
    assert slots is not None
    assert index.reserve(71) is None
    assert index.stats().num_tokens == 60
    assert index.reserve(70) is not None
    assert index.stats().num_tokens == 0
    index.check_integrity()
    index.forget()
    assert index.reserve(100) is not None, "what was reserved is forgotten too"


def test_hits_are_counted() -> None:
    index = SpanIndex(1000)
    stored(index, b"one", text(0, 300))
    index.find(b"one", ids(text(0, 200), text(1, 101)), 50)
    stats = index.stats(token_bytes=10)
    assert (stats.num_queried, stats.num_hit) == (250, 150)
    assert stats.num_bytes == 3000


def test_an_index_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="num_slots is 0"):
        SpanIndex(0)


def test_prompts_too_short_to_look_up_have_no_match() -> None:
    index = SpanIndex(100)
    stored(index, b"one", text(0, 50))
    for num_tokens in range(KGRAM_LEN + 1):
        assert index.find(b"one", text(0, num_tokens), 0) == []
    assert len(index.find(b"one", text(0, KGRAM_LEN + 1), 0)) == 1
