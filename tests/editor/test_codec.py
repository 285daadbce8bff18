"""Bytes to text and back: nothing that was not edited changes by a byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.codec import decode, encode, restore
from editor.errors import BinaryFileError, CodecError, NotEncodableError, NotUtf8Error

LINE = st.text(st.sampled_from("ab \t\x0b\x0c\x85\u2028éé\u0301"), max_size=5)
ENDINGS = st.sampled_from(["\n", "\r\n"])


@st.composite
def files(draw: st.DrawFn) -> list[str]:
    """Lines with their endings, mixed; the last may have none."""
    lines = [line + ending for line, ending in draw(st.lists(st.tuples(LINE, ENDINGS), max_size=8))]
    last = draw(LINE)
    return [*lines, last] if last else lines


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.booleans())
def test_any_text_comes_back_byte_for_byte(text: str, bom: bool) -> None:
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    source = decode(data)
    assert encode(source.text, source) == data


@given(files(), st.booleans())
def test_mixed_endings_come_back_byte_for_byte(lines: list[str], bom: bool) -> None:
    data = ("\ufeff" * bom + "".join(lines)).encode()
    source = decode(data)
    assert "\r" not in source.text
    assert len(source.line_endings) == len(lines)
    assert encode(source.text, source) == data


@given(files(), st.data())
def test_bytes_outside_of_a_change_stay(lines: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lines)))
    end = data.draw(st.integers(start, len(lines)))
    source = decode("".join(lines).encode())
    old = source.text.split("\n")[: len(lines)]
    # A last line without an ending gets one when something comes behind it, so only earlier ones are held.
    new = [*old[:start], "XYZ", *old[end:]]
    merged = encode("\n".join(new) + "\n" * bool(source.line_endings and source.line_endings[-1]), source).decode()
    above, below = lines[:start], lines[end:]
    if above and not above[-1].endswith("\n"):
        above.pop()
    assert merged.startswith("".join(above))
    assert merged.endswith("".join(below))


def test_a_model_that_composes_characters_leaves_untouched_lines_as_they_were() -> None:
    source = decode("cafe\u0301 = 1\r\nb = 2\n".encode())
    assert restore("café = 1\nb = 3\n", source) == "cafe\u0301 = 1\r\nb = 3\n"
    assert restore("café = 1\nb = 2\n", source, undo_nfc=False) == "café = 1\r\nb = 2\n"


def test_new_lines_take_the_ending_of_what_they_replace_or_follow() -> None:
    source = decode(b"a\r\nb\nc\r\n")
    assert restore("a\nB\nc\n", source) == "a\r\nB\nc\r\n"
    assert restore("a\nnew\nb\nc\n", source) == "a\r\nnew\r\nb\nc\r\n"
    assert restore("a\nb\nc\nd\n", source) == "a\r\nb\nc\r\nd\r\n"


@pytest.mark.parametrize(
    ("before", "merged", "after"),
    [
        (b"a\nb", "A\nb\n", b"A\nb"),  # a model likes to add a final newline
        (b"a\nb\n", "A\nb", b"A\nb\n"),  # and to drop one
        (b"a\nb", "a\nB\n", b"a\nB\n"),  # the last line was edited: what the edit says
        (b"a\r\nb", "a\nb\nc", b"a\r\nb\r\nc"),
        (b"", "a\n", b"a\n"),
        (b"a\n", "", b""),
    ],
)
def test_final_newline(before: bytes, merged: str, after: bytes) -> None:
    assert encode(merged, decode(before)) == after


def test_a_lone_carriage_return_ends_a_line_only_in_a_file_without_newlines() -> None:
    assert decode(b"a\rb\r").text == "a\nb\n"
    assert encode("a\nB\n", decode(b"a\rb\r")) == b"a\rB\r"
    assert decode(b"10%\r20%\nb\n").text == "10%\r20%\nb\n"


def test_other_separators_are_text() -> None:
    text = "a\x0bb\x0cc\x85d\u2028e\u2029f\x1cg\n"
    assert decode(text.encode()).line_endings == ("\n",)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"PNG\0\1", BinaryFileError, "offset 3"),
        (b"abc\xe9", NotUtf8Error, "0xe9 at offset 3"),
        ("a".encode("utf-16"), NotUtf8Error, "UTF-16"),
        ("a".encode("utf-32"), NotUtf8Error, "UTF-32"),
    ],
)
def test_what_is_no_utf8_text_is_refused_in_one_line(data: bytes, error: type[CodecError], says: str) -> None:
    with pytest.raises(error) as caught:
        decode(data)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(NotEncodableError, match="U\\+D800"):
        encode("\ud800", decode(b""))
