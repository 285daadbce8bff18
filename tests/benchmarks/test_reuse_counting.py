"""What the benchmark counts of turns is what an engine reports of them."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from benchmarks.reuse.prompts import ALL, Books, Prompt, count_session
from engine.core import EngineCore
from engine.reuse import PromptSegment, Reuse, ReuseMode
from tests.engine.cores import tiny_model
from tests.engine.reuse.turns import edited, random_ids, reusing_core, run
from tests.engine.tiny import VOCAB_SIZE

PAGE_SIZE = 4
NUM_SLOTS = 1 << 14


def segmented(random: Random, ids: list[int]) -> list[PromptSegment]:
    borders = sorted({0, len(ids), *(random.randrange(len(ids) + 1) for _ in range(6))})
    return [PromptSegment(ids[first:end]) for first, end in pairwise(borders)]


def conversation(random: Random, num_turns: int) -> list[Prompt]:
    """Prompts that go on from the one before and its answer, and now and then have something changed within."""
    made, ids = [], random_ids(random, 60)
    for _ in range(num_turns):
        ids = edited(random, ids) if random.random() < 0.5 else ids
        ids = [*ids, *random_ids(random, random.randrange(1, 12))][-150:]
        answer = random_ids(random, random.randrange(1, 9))
        made.append(Prompt(segmented(random, ids), answer, 0, compacted=False))
        ids = [*ids, *answer]
    return made


def core_of(num_pages: int, books: Books) -> EngineCore:
    sizes = {"kv_bytes": num_pages * PAGE_SIZE * 256, "span_bytes": NUM_SLOTS * 256}
    core = reusing_core(tiny_model(), **sizes, check_integrity=False)
    assert core.pages.num_pages == books.num_pages == num_pages
    assert core.reuse is not None
    assert core.reuse.store.num_slots == NUM_SLOTS
    return core


@pytest.mark.parametrize(
    ("mode", "num_pages"),  # room for one prompt, so that what is cached goes; or for all
    [("exact", 70), ("fast", 70), ("turbo", 600)],
)
def test_the_count_is_that_of_an_engine(mode: ReuseMode, num_pages: int) -> None:
    prompts = conversation(Random(f"{mode}{num_pages}"), 12)
    books = Books(num_pages, NUM_SLOTS, PAGE_SIZE)
    counted = count_session("a", prompts, mode, books).turns
    books.check_integrity()
    core = core_of(num_pages, books)
    for prompt, turn in zip(prompts, counted, strict=True):
        reuse = Reuse.from_segments(prompt.segments, mode)
        ids = [token for segment in prompt.segments for token in segment.token_ids]
        answer = prompt.answer_ids
        usage = run(core, ids, reuse, forced_ids=answer, max_new_tokens=len(answer) + 1).usage
        assert (usage.prompt, usage.cached, usage.reused_approximate) == (turn.prompt, turn.cached, turn.reused)
        assert (usage.recomputed, usage.recomputed_by) == (turn.recomputed, turn.by_reason)
    assert sum(turn.cached for turn in counted) > 0
    assert (sum(turn.reused for turn in counted) > 0) == (mode != "exact")


def test_with_time_between_the_turns_all_but_what_is_new_is_exact() -> None:
    prompts = conversation(Random("idle"), 12)
    idle = count_session("a", prompts, "turbo", Books(600, NUM_SLOTS, PAGE_SIZE), idle=ALL)
    exact = count_session("a", prompts, "exact", Books(600, NUM_SLOTS, PAGE_SIZE))
    assert [turn.cached for turn in idle.turns] == [turn.cached for turn in exact.turns]
    assert idle.rebuilt >= idle.sum_field("reused") > 0
    assert idle.sum_field("recomputed") < exact.sum_field("recomputed")


def test_time_for_a_part_computes_that_part() -> None:
    segments = [PromptSegment(random_ids(Random("part"), 100))]
    books = Books(600, NUM_SLOTS, PAGE_SIZE)
    assert [books.rebuild(segments, 40) for _ in range(4)] == [40, 40, 20, 1]  # the last token is run in any case


def test_tenants_share_nothing() -> None:
    books = Books(600, NUM_SLOTS, PAGE_SIZE)
    segments = [PromptSegment(list(range(VOCAB_SIZE)))]
    assert books.turn(segments, "turbo", salt="a").recomputed == VOCAB_SIZE
    assert books.turn(segments, "turbo", salt="b").recomputed == VOCAB_SIZE
    assert books.turn(segments, "turbo", salt="a").recomputed == 1
