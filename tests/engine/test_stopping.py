"""Stop strings and stop ids, with what may be streamed while it is still open whether a stop begins."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engine.stopping import StopFinder

TABLE = [b"a", b"b", b"ab", b"ba", b"aab", b"", b"c", b"</x", b">"]
END = len(TABLE)  # a stop id; it has no bytes

token_ids = st.lists(st.integers(0, len(TABLE) - 1), max_size=20)
stops = st.lists(st.sampled_from([b"a", b"bb", b"aba", b"abab", b"ca", b"</x>"]), max_size=3).map(tuple)


def text_until_stop(token_ids: list[int], stop: tuple[bytes, ...]) -> tuple[bytes, int]:
    """The slow way: after every token look for every stop in all of the text; the earliest place counts."""
    text = b""
    for count, token_id in enumerate(token_ids, start=1):
        text += TABLE[token_id]
        found = [text.find(string) for string in stop if string in text]
        if found:
            return text[: min(found)], count
    return text, len(token_ids)


@given(token_ids, stops, st.integers(1, 4))
@example([0, 1, 0, 0, 1, 0, 1], (b"abab",), 1)
@example([7, 8], (b"</x>",), 1)
@example([1, 3], (b"a", b"bb"), 1)
def test_text_ends_where_looking_at_all_of_it_would_end_it(
    token_ids: list[int], stop: tuple[bytes, ...], every: int
) -> None:
    expected, num_taken = text_until_stop(token_ids, stop)
    finder = StopFinder(TABLE, frozenset(), stop)
    released = b""
    for count, token_id in enumerate(token_ids, start=1):
        stopped = finder.push(token_id)
        if count % every == 0:
            released += finder.release(finished=False)
            assert expected.startswith(released), "bytes of a stop string were given out"
        if stopped:
            break
    assert finder.stopped == (num_taken < len(token_ids) or stops_in(token_ids, stop))
    assert bytes(finder.text) == expected
    assert released + finder.release(finished=True) == expected


def stops_in(token_ids: list[int], stop: tuple[bytes, ...]) -> bool:
    text = b"".join(TABLE[token_id] for token_id in token_ids)
    return any(string in text for string in stop)


def test_only_what_could_begin_a_stop_is_held_back() -> None:
    finder = StopFinder([b"a</", b"b", b"x>"], frozenset(), (b"</x>",))
    finder.push(0)
    assert finder.release(finished=False) == b"a"
    finder.push(1)
    assert finder.release(finished=False) == b"</b"
    finder.push(0)
    finder.push(2)
    assert finder.stopped
    assert finder.release(finished=False) == b"a"


def test_a_stop_id_ends_the_output_and_is_no_part_of_it() -> None:
    finder = StopFinder(TABLE, frozenset({END}), (b"zz",))
    assert not finder.push(0)
    assert finder.push(END)
    assert finder.release(finished=False) == b"a"


def test_the_limit_releases_what_was_held_back() -> None:
    finder = StopFinder(TABLE, frozenset(), (b"ab",))
    finder.push(0)
    assert finder.release(finished=False) == b""
    assert finder.release(finished=True) == b"a"


def test_without_stops_everything_is_released_at_once() -> None:
    finder = StopFinder(TABLE, frozenset(), ())
    finder.push(4)
    assert finder.release(finished=False) == b"aab"
