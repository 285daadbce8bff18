"""The index finds every place that the tail of the output has before it, as a search token by token does."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engine.speculation.sources import NO_TOKEN, SuffixIndex

few_ids = st.lists(st.integers(0, 2), max_size=12)


def slow_search(texts: list[list[int]], tail: list[int], longest: int) -> dict[int, int]:
    """Place -> length of the match before it, over the texts laid end to end with one place between them."""
    found, start = {}, 1
    for number, text in enumerate(texts):
        last = len(text) if number + 1 < len(texts) else len(text) - 1  # nothing is known behind the output
        for end in range(1, last + 1):
            length = 0
            while length < min(end, len(tail), longest) and text[end - 1 - length] == tail[-1 - length]:
                length += 1
            if length:
                found[start + end] = length
        start += len(text) + 1
    return found


@given(st.lists(few_ids, max_size=3), few_ids, few_ids, st.integers(1, 6))
@example([[0, 0]], [0, 0, 0], [0, 0, 0], 6)
def test_the_search_equals_one_token_by_token(
    sources: list[list[int]], output: list[int], tail: list[int], longest: int
) -> None:
    index = SuffixIndex(sources, room=1)
    index.grow(output)
    places, lengths = index.search(tail, longest)
    assert dict(zip(places.tolist(), lengths.tolist(), strict=True)) == slow_search([*sources, output], tail, longest)


@given(st.lists(few_ids, max_size=3), few_ids, st.lists(st.integers(1, 5), max_size=8))
def test_growing_in_steps_equals_growing_at_once(sources: list[list[int]], output: list[int], steps: list[int]) -> None:
    at_once, in_steps = SuffixIndex(sources), SuffixIndex(sources, room=0)
    at_once.grow(output)
    seen = 0
    for step in [*steps, len(output)]:
        in_steps.grow(output[seen : seen + step])
        seen = min(len(output), seen + step)
    assert in_steps.end == at_once.end
    assert in_steps[0 : at_once.end + 1] == at_once[0 : at_once.end + 1]


def test_the_texts_stand_apart() -> None:
    index = SuffixIndex([[1, 2], [3]])
    index.grow([2, 3])
    assert index.starts == [1, 4, 6]
    assert index[0:9] == [NO_TOKEN, 1, 2, NO_TOKEN, 3, NO_TOKEN, 2, 3, NO_TOKEN]
    places, lengths = index.search([2, 3], 8)
    assert (places.tolist(), lengths.tolist()) == ([5], [1])  # not across texts, and not the output's own end
