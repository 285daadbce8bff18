"""Lines are written at the indentation that the model gives a block, in tokens as a tokenizer writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.token_lines import Reindent, TokenLines, complete_line, reindent_line
from tests.engine.speculation.toy_tokens import TOKEN_BYTES, encode

LINES = TokenLines(TOKEN_BYTES)


@pytest.mark.parametrize(
    ("pairs", "indent", "expected"),
    [
        ({}, b"  ", b"  "),
        ({b"": b"    "}, b"  ", b"      "),
        ({b"    ": b""}, b"      ", b"  "),
        ({b"        ": b"    "}, b"    ", b""),
        ({b"    ": b"\t"}, b"        ", b"\t\t"),
        ({b"\t": b"  "}, b"\t\t\t", b"      "),
        ({b"  ": b"    ", b"    ": b"        "}, b"      ", b"            "),
        ({b"": b"\t\t", b"    ": b"\t\t\t"}, b"        ", b"\t\t\t\t"),
        ({b"    ": b"      ", b"        ": b"          "}, b"", b"  "),
        ({b"\t": b"  "}, b" ", b" "),  # nothing can be told
    ],
)
def test_what_was_seen_of_some_lines_tells_of_others(pairs: dict[bytes, bytes], indent: bytes, expected: bytes) -> None:
    assert Reindent(pairs)(indent) == expected


words = st.sampled_from(["def", "x", "zz (", "a b", "1", "...", "y)"])
depths = st.integers(0, 7)


@given(depths, depths, words)
def test_a_line_at_another_depth_is_tokenized_as_if_written_there(old: int, new: int, words: str) -> None:
    line = encode(" " * old + words + "\n")
    moved = reindent_line(line, Reindent({b" " * old: b" " * new}), LINES)
    assert moved == encode(" " * new + words + "\n")


@given(depths, depths, words.filter(lambda words: words != "1"))  # " 1" and "  1" both begin with the token " "
def test_a_line_whose_blanks_are_written_is_gone_on_with(old: int, new: int, words: str) -> None:
    line, written = encode(" " * old + words + "\n"), encode(" " * new + words + "\n")
    if not LINES.describe(written[0]).is_blank:
        return
    rest, seen = complete_line(line, written[:1], LINES)
    assert rest == written[1:]
    assert all(Reindent(seen)(b" " * old) == b" " * new for _ in seen)


def test_blank_lines_and_words_without_a_token_stay_as_they_are() -> None:
    blank, unknown = encode("  \n"), [999, *encode("\n")]
    assert reindent_line(blank, Reindent({b"": b"  "}), LINES) == blank
    assert reindent_line(unknown, Reindent({b"": b"  "}), LINES) == unknown
