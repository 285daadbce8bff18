"""Stop strings and stop ids, and the bytes that may be streamed while a stop string or a character is incomplete."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.request import StopFinder, find_character_border

PIECES = [
    b"a",
    b"b",
    b"ab",
    b"aab",
    b"</x>",
    b"\xc3\xa4",
    "€".encode(),
    "😀".encode(),
    b"\xe2",
    b"\x82",
    b"\xf0\x9f",
    b"\xff",
]
STOPS = [
    b"a",
    b"bb",
    b"aba",
    b"abab",
    b"aab",
    b"abaab",
    b"ca",
    b"</x>",
    "€".encode(),
    b"\x82\xac",
    b"\x80",
    b"\xa4a",
    b"b\xf0",
]

texts = st.lists(st.sampled_from(PIECES), max_size=16).map(b"".join)
any_texts = st.one_of(texts, st.text(max_size=20).map(str.encode), st.binary(max_size=20))
stops = st.lists(st.sampled_from(STOPS), max_size=3).map(tuple)
cuts = st.lists(st.integers(0, 60), max_size=30)


def split(text: bytes, places: list[int]) -> list[bytes]:
    """The text parted at these places; there may be empty parts."""
    borders = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


def run(tokens: list[bytes], stop: tuple[bytes, ...]) -> tuple[StopFinder, list[bytes]]:
    """The finder behind the last token that it took, and what it released behind each of them."""
    finder = StopFinder(tokens, frozenset(), stop)
    pieces = []
    for token_id in range(len(tokens)):
        finder.push(token_id)
        pieces.append(finder.release(finished=token_id == len(tokens) - 1))
        if finder.stopped:
            break
    return finder, pieces


def text_until_stop(text: bytes, stop: tuple[bytes, ...]) -> tuple[bytes, bool]:
    """The slow way: byte by byte, look whether the text ends with a stop string; the longest is cut off."""
    for end in range(1, len(text) + 1):
        found = [each for each in stop if text[:end].endswith(each)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(any_texts, cuts, stops)
@example(b"abaabab", [1, 2, 3, 4, 5, 6], (b"abab",))
@example(b"abab", [3], (b"abab", b"ba"))  # b"ba" is complete first
@example(b"</</x>", [2, 5], (b"</x>",))
@example(b"aaab", [], (b"aab",))  # the second b"a" may be the first of the stop
@example(b"abaabaab", [4], (b"abaabb", b"aabaab"))
def test_the_output_ends_where_the_first_stop_string_is_complete(
    text: bytes, places: list[int], stop: tuple[bytes, ...]
) -> None:
    finder, pieces = run(split(text, places), stop)
    expected, stopped = text_until_stop(text, stop)
    assert finder.stopped == stopped
    assert bytes(finder.text) == expected
    assert b"".join(pieces) == expected


@given(any_texts, cuts, st.sampled_from(STOPS))
def test_one_stop_string_is_found_where_find_finds_it(text: bytes, places: list[int], stop: bytes) -> None:
    finder, _ = run(split(text, places), (stop,))
    at = text.find(stop)
    assert finder.stopped == (at >= 0)
    assert bytes(finder.text) == (text[:at] if at >= 0 else text)


@given(any_texts, cuts, stops)
@example(b"x\xe2\x82", [], (b"\x82a",))
def test_no_more_is_held_back_than_may_begin_a_stop_and_the_character_before_it(
    text: bytes, places: list[int], stop: tuple[bytes, ...]
) -> None:
    tokens = split(text_until_stop(text, stop)[0], places)
    finder = StopFinder(tokens, frozenset(), stop)
    if any(map(finder.push, range(len(tokens)))):
        return  # what is left of a stop that was cut off is another one
    text = b"".join(tokens)
    held = max((length for each in stop for length in range(len(each)) if text.endswith(each[:length])), default=0)
    expected = text[: find_character_border(bytearray(text), len(text) - held)]
    assert finder.release(finished=False) == expected


@given(st.text(max_size=30), cuts)
@example("a€😀€éa", [2, 3, 5, 6, 7, 9, 10])
def test_every_piece_of_a_text_is_a_text(text: str, places: list[int]) -> None:
    _, pieces = run(split(text.encode(), places), (b"\x01", "€é".encode()))
    assert (
        "".join(piece.decode() for piece in pieces)
        == text_until_stop(text.encode(), (b"\x01", "€é".encode()))[0].decode()
    )


@given(any_texts, cuts)
def test_decoding_the_pieces_is_decoding_the_whole(text: bytes, places: list[int]) -> None:
    """With invalid bytes in it, too: the replacement characters are the same."""
    _, pieces = run(split(text, places), ())
    assert "".join(piece.decode(errors="replace") for piece in pieces) == text.decode(errors="replace")


@given(any_texts, st.integers(0, 20))
def test_no_more_than_an_open_character_is_held_back(text: bytes, end: int) -> None:
    """What is held back before the end can be made a character, and what is not held back cannot."""
    end = min(end, len(text))
    border = find_character_border(bytearray(text), end)
    endings = [b"", *(first + b"\x80" * more for first in (b"\x80", b"\x90", b"\xa0") for more in range(3))]
    parted = [
        start
        for start in range(max(0, end - 3), end)
        for ending in endings
        for size in (2, 3, 4)
        if start + size > end and is_character((text + ending)[start : start + size], size)
    ]
    assert border == min(parted, default=end)


def test_every_first_byte_opens_its_characters_until_they_are_whole() -> None:
    codes = {*range(0, 0x110000, 61), 0x7F, 0x80, 0x7FF, 0x800, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF} - {
        *range(0xD800, 0xE000)
    }
    opened = set()
    for character in (chr(code).encode() for code in sorted(codes)):
        opened.add(character[0])
        assert find_character_border(bytearray(character), len(character)) == len(character)
        for length in range(1, len(character)):
            assert find_character_border(bytearray(character[:length]), length) == 0
    for byte in {*range(256)} - opened:
        assert find_character_border(bytearray([byte]), 1) == 1


def is_character(part: bytes, size: int) -> bool:
    try:
        return len(part) == size and len(part.decode()) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        ([b"\xe2", b"\x82", b"\xac!"], [b"", b"", b"\xe2\x82\xac!"]),
        ([b"a\xf0\x9f", b"\x98\x80"], [b"a", b"\xf0\x9f\x98\x80"]),
        ([b"\xe2", b"("], [b"", b"\xe2("]),  # cannot become a character
        ([b"\xff", b"a"], [b"\xff", b"a"]),  # begins none
        ([b"\x80", b"\x80"], [b"\x80", b"\x80"]),
        ([b"\xed", b"\xa0", b"\x80"], [b"", b"\xed\xa0", b"\x80"]),  # a surrogate is no character
        ([b"\xf4", b"\x90"], [b"", b"\xf4\x90"]),  # nor is what lies behind the last one
        ([b"\xe2", b"\x82"], [b"", b"\xe2\x82"]),  # open at the end
    ],
)
def test_a_character_is_released_whole_and_what_is_none_at_once(tokens: list[bytes], pieces: list[bytes]) -> None:
    assert run(tokens, ())[1] == pieces


def test_only_what_could_begin_a_stop_is_held_back() -> None:
    finder, pieces = run([b"a</", b"b", b"a</", b"x>c"], (b"</x>",))
    assert pieces == [b"a", b"</b", b"a", b""]
    assert finder.stopped


def test_a_stop_that_begins_inside_a_character_holds_all_of_it_back() -> None:
    """The euro sign is E2 82 AC: while AC may begin the stop, E2 82 alone would be no character."""
    finder, pieces = run([b"\xe2\x82\xac", b"a", b"b"], (b"\xacb",))
    assert pieces == [b"", b"\xe2\x82\xaca", b"b"]
    assert run([b"\xe2\x82\xac", b"b"], (b"\xacb",))[1] == [b"", b"\xe2\x82"]
    assert not finder.stopped


def test_bytes_before_a_held_stop_that_are_no_character_are_released() -> None:
    _, pieces = run([b"\xe2<", b"/"], (b"</x>",))
    assert pieces == [b"\xe2", b"</"]


def test_of_stops_that_are_complete_with_the_same_byte_the_longest_is_cut_off() -> None:
    for stop in [(b"bc", b"abc"), (b"abc", b"bc")]:
        assert run([b"xab", b"cd"], stop)[1] == [b"x", b""]


def test_a_stop_id_ends_the_output_and_is_no_part_of_it() -> None:
    finder = StopFinder([b"a", b"secret"], frozenset({1}), (b"ab",))
    assert not finder.push(0)
    assert finder.release(finished=False) == b""
    assert finder.push(1)
    assert finder.release(finished=False) == b"a"


def test_the_limit_releases_what_was_held_back() -> None:
    for token in (b"xa", b"x\xe2\x82"):
        finder = StopFinder([token], frozenset(), (b"ab",))
        finder.push(0)
        assert finder.release(finished=False) == b"x"
        assert finder.release(finished=True) == token[1:]


def test_without_stops_everything_is_released_at_once() -> None:
    assert run([b"aab", b"", b"c"], ())[1] == [b"aab", b"", b"c"]


def test_a_long_stop_that_nearly_comes_again_and_again_looks_at_every_byte_a_few_times() -> None:
    """Counted, not timed: beginnings of the stop overlap everywhere, and no text is looked at anew."""
    looks = 0

    class Counted(bytes):
        def __getitem__(self, key: int) -> int:  # type: ignore[override]
            nonlocal looks
            looks += 1
            return super().__getitem__(key)

    stop = Counted(b"a" * 500 + b"b")
    finder = StopFinder([b"a", b"b"], frozenset(), (stop,))
    looks = 0
    for _ in range(5000):
        finder.push(0)
        finder.release(finished=False)
    assert looks < 4 * 5000
    assert finder.push(1)
    assert len(finder.text) == 4500
