"""Bytes to text and back: nothing that was not edited changes by a byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.codec import BOM, ByteChanges, compare_bytes, decode, encode, restore, to_bytes
from editor.diff import ops_of_changes
from editor.errors import BinaryFileError, CodecError, NotEncodableError, UndecodableError

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
    assert restore("café = 1\nb = 2\n", source, by_model=False) == "café = 1\r\nb = 2\n"


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


ENCODINGS = {
    "utf-8": "ab\x0c\u00a0é😀\u2028\t",
    "utf-8-sig": "ab\x0c\u00a0é😀\u2028\t",
    "utf-16-le": "ab\x0c\u00a0é😀\u2028\t",
    "utf-16-be": "ab😀\u0d0a\u0a0d",
    "utf-32-le": "ab😀é",
    "cp1252": "ab\x0c\u00a0é€“\t",
    "latin-1": "ab\x81\x8d\xff\u00a0",
}


def in_encoding(text: str, encoding: str) -> bytes:
    return (BOM * encoding.startswith(("utf-16", "utf-32")) + text).encode(encoding)


@given(st.sampled_from([*ENCODINGS]), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.data())
def test_an_edit_and_its_inverse_give_the_original_bytes(
    encoding: str, ending: str, final_newline: bool, data: st.DataObject
) -> None:
    alphabet = ENCODINGS[encoding]
    # Apart from one another, as accented letters stand, or the encoding could be another one after the edit.
    line = st.text(st.sampled_from(alphabet), max_size=4).map(lambda text: "a".join(text))
    # Two lines that stay: a file has to keep one ending at least to know its endings, and its encoding by.
    head = [f"{alphabet[-1]} {char}" for char in alphabet]
    lines = [*head, *data.draw(st.lists(line, max_size=5)), "end"]
    start = data.draw(st.integers(len(head), len(lines)))
    end = data.draw(st.integers(start, len(lines)))
    edited = [*lines[:start], *data.draw(st.lists(line, max_size=3)), *lines[end:], "new"]
    original = in_encoding(ending.join(lines) + ending * final_newline, encoding)
    source = decode(original)
    changed = encode("\n".join(edited) + "\n" * final_newline, source)
    assert changed == in_encoding(ending.join(edited) + ending * final_newline, encoding)
    assert encode(source.text, decode(changed)) == original


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"", "utf-8", ""),
        ("é\n".encode(), "utf-8", "é\n"),
        (b"\xff\xfea\0\r\0\n\0", "utf-16-le", "a\n"),
        (b"\xfe\xff\0a\0\n", "utf-16-be", "a\n"),
        (b"\xff\xfe\0\0a\0\0\0", "utf-32-le", "a"),
        (b"\0\0\xfe\xff\0\0\0a", "utf-32-be", "a"),
        (b"caf\xe9 \x80 \x93x\x94\xa0\n", "cp1252", "café € “x”\u00a0\n"),
        (b"caf\xe9 \x81\n", "latin-1", "café \x81\n"),
        ("привет".encode("cp1251"), "latin-1", "ïðèâåò"),
        ("café é".encode() + b"\xff", "latin-1", "cafÃ© Ã©ÿ"),
    ],
)
def test_encodings_are_told_apart(data: bytes, encoding: str, text: str) -> None:
    source = decode(data)
    assert (source.encoding, source.text) == (encoding, text)
    assert encode(source.text, source) == data
    assert to_bytes(data.decode(source.encoding), source.encoding) == data


@given(st.binary(max_size=40))
def test_every_text_file_in_whatever_encoding_comes_back_byte_for_byte(data: bytes) -> None:
    try:
        source = decode(data)
    except CodecError:
        return
    assert encode(source.text, source) == data


@pytest.mark.parametrize(
    ("before", "merged", "char", "line", "says"),
    [
        (b"caf\xe9\r\nb\n", "café\nb\n→\n", "→", 3, r"U\+2192 RIGHTWARDS ARROW.*Windows-1252.*UTF-8 first"),
        (b"caf\xe9\rb\r", "café\n→\n", "→", 2, "Line 2 of"),
        ("привет".encode("cp1251"), "ïðèâåò é", "é", 1, "not known"),
        (b"", "\ud800", "\ud800", 1, r"lone surrogate \(U\+D800\)"),
    ],
)
def test_what_the_encoding_cannot_express_is_refused(
    before: bytes, merged: str, char: str, line: int, says: str
) -> None:
    with pytest.raises(NotEncodableError, match=says) as caught:
        encode(merged, decode(before))
    assert (caught.value.char, caught.value.line) == (char, line)
    assert "\n" not in caught.value.message


def test_in_an_unknown_encoding_what_the_file_has_may_be_written_again() -> None:
    data = "привет\n".encode("cp1251")
    source = decode(data)
    assert encode(source.text + "x ïðè\n", source) == data + b"x " + "при\n".encode("cp1251")


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"PNG\0\1", BinaryFileError, "offset 3"),
        (b"\x89PNG\r\n\x1a\n\x01\x02", BinaryFileError, "2 control characters"),
        ("ab\n".encode("utf-16-le"), BinaryFileError, "UTF-16 without a byte order mark"),
        ("ab\n".encode("utf-16-be") * 5000, BinaryFileError, "UTF-16 without a byte order mark"),
        (b"\xff\xfea\0\0\0", BinaryFileError, "U\\+0000 in UTF-16"),
        (b"\xff\xfea", UndecodableError, "says UTF-16, but byte 0x61 at offset 2"),
        (b"\xef\xbb\xbfabc\xe9", UndecodableError, "says UTF-8, but byte 0xe9 at offset 6"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(data: bytes, error: type[CodecError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        decode(data)
    assert "\n" not in caught.value.message


def test_escapes_and_form_feeds_do_not_make_a_file_binary() -> None:
    assert decode(b"\x0c\x1b[31mcaf\xe9\x1b[0m\x08 \x1a").encoding == "cp1252"


def test_a_long_line_keeps_what_stands_around_it() -> None:
    long = "x" * 500_000 + "\u00a0" + "😀" * 100_000
    data = f"a \t\r\n{long}\nb  \x0c\n\rc\r\n".encode()
    source = decode(data)
    assert encode(source.text, source) == data
    assert encode(source.text.replace("b  ", "B  "), source) == data.replace(b"b  ", b"B  ")
    assert encode(source.text.replace("a \t", "A \t"), source) == data.replace(b"a \t", b"A \t")


@pytest.mark.parametrize(
    ("before", "merged", "after"),
    [
        (b"a\nb", "a\nb\n", b"a\nb\n"),
        (b"a\nb\n", "a\nb", b"a\nb"),
        (b"a\r\nb", "a\nb\n", b"a\r\nb\r\n"),
        (b"a\r\nb\r\n", "a\nb", b"a\r\nb"),
    ],
)
def test_a_rule_may_add_or_take_away_the_final_newline(before: bytes, merged: str, after: bytes) -> None:
    assert encode(merged, decode(before), by_model=False) == after


def test_of_two_equal_lines_the_one_that_stays_keeps_its_own_ending() -> None:
    source = decode(b"f {\r\n}\r\n}\nend\n")
    for gone, after in ((1, b"f {\r\n}\nend\n"), (2, b"f {\r\n}\r\nend\n")):
        ops = ops_of_changes([(gone, gone + 1, 0)], 4)
        assert encode("f {\n}\nend\n", source, by_model=False, ops=ops) == after
        assert not compare_bytes(source, after).endings
    assert compare_bytes(source, b"f {\r\n}\r\nend\n", ops_of_changes([(1, 2, 0)], 4)).endings == (1,)


@given(st.lists(st.tuples(st.sampled_from(["", "a", "}"]), ENDINGS), min_size=1, max_size=8), st.data())
def test_any_deletion_leaves_the_other_bytes_as_they_are(lines: list[tuple[str, str]], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    joined = ["".join(line) for line in lines]
    kept = [*joined[:start], *joined[end:]]
    source = decode("".join(joined).encode())
    ops = ops_of_changes([(start, end, 0)], len(lines))
    merged = "".join(line + "\n" for line, _ in [*lines[:start], *lines[end:]])
    written = encode(merged, source, by_model=False, ops=ops)
    assert written == "".join(kept).encode()
    assert compare_bytes(source, written) == compare_bytes(source, written, ops) == ByteChanges((), False, False)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (b"a\nb\n", b"a\nb\nc\n", ByteChanges((), False, False)),
        (b"a\r\nb\r\n", b"a\nb\r\n", ByteChanges((0,), False, False)),
        (b"a\r\nb\r\n", b"x\na\r\nb\n", ByteChanges((2,), False, False)),
        (b"}\r\n}\n", b"}\n", ByteChanges((), False, False)),
        (b"a\nb", b"a\nb\n", ByteChanges((), False, True)),
        (b"a\r\nb", b"a\r\nb\r\nc", ByteChanges((), False, False)),
        (b"\xef\xbb\xbfa\n", b"a\n", ByteChanges((), True, False)),
        (b"a\n", b"\xef\xbb\xbfa\r\n", ByteChanges((0,), True, False)),
        (b"", b"a\n", ByteChanges((), False, False)),
        (b"", b"", ByteChanges((), False, False)),
        ("\ufeffa\nb\n".encode("utf-16-le"), "\ufeffa\r\nb\n".encode("utf-16-le"), ByteChanges((0,), False, False)),
    ],
)
def test_what_new_bytes_change_beside_the_text(before: bytes, after: bytes, changes: ByteChanges) -> None:
    assert compare_bytes(decode(before), after) == changes


@pytest.mark.parametrize(
    ("before", "merged", "says"),
    [
        (b"a\nb\n", "a\nB\0\n", "Line 2 of the merged text holds a NUL character"),
        ("\ufeffa\n".encode("utf-16-le"), "a\0\n", "Line 1 of the merged text holds a NUL character"),
        (b"caf\xe9\n", "café\n\x01\x02\n", r"Line 2 .* control characters \(the first is U\+0001\)"),
    ],
)
def test_a_result_that_would_be_binary_is_refused(before: bytes, merged: str, says: str) -> None:
    with pytest.raises(NotEncodableError, match=says):
        encode(merged, decode(before), by_model=False)
