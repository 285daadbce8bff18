"""The range that differs between two texts, against a search character by character."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from repo_cache import incremental as module
from repo_cache.incremental import TextChange, find_text_change
from tests.repo_cache.hostile import Edit, edits, texts


def slow_change(old: str, new: str) -> TextChange | None:
    """Character by character; the common beginning first."""
    if old == new:
        return None
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    behind = 0
    while behind < min(len(old), len(new)) - start and old[-behind - 1] == new[-behind - 1]:
        behind += 1
    before = len(old[:start].encode())
    return TextChange(
        before,
        before + len(old[start : len(old) - behind].encode()),
        before + len(new[start : len(new) - behind].encode()),
    )


@given(text=texts, edit=edits)
def test_the_change_is_what_a_search_by_characters_finds(text: str, edit: Edit) -> None:
    new = edit.apply(text)
    assert find_text_change(text.encode(), new.encode()) == slow_change(text, new)


@given(first=st.text("aéĩè日本", max_size=4), second=st.text("aéĩè日本", max_size=4))
def test_characters_that_share_bytes_are_never_cut(first: str, second: str) -> None:
    assert find_text_change(first.encode(), second.encode()) == slow_change(first, second)


def test_of_repeats_the_last_one_is_the_change() -> None:
    assert find_text_change(b"aa", b"aaa") == TextChange(2, 2, 3)
    assert find_text_change(b"f()\nf()\n", b"f()\n") == TextChange(4, 8, 4)


def test_texts_longer_than_a_block_of_the_comparison() -> None:
    random = Random(0)
    size = 3 * module._BLOCK
    text = random.randbytes(size).translate(bytes(byte & 0x7F for byte in range(256)))
    for place in [0, 1, module._BLOCK - 1, module._BLOCK, module._BLOCK + 1, size // 2, size - 1, size]:
        assert find_text_change(text, text[:place] + b"\x80"[:0] + b"\xc3\xa9" + text[place + 1 :]) == TextChange(
            place, min(size, place + 1), place + 2
        )
