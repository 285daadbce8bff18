"""Incremental encoding: after each edit of hostile text the change is minimal, and the ids are the whole text's."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from repo_cache import incremental as module
from repo_cache.errors import TokenizerError
from repo_cache.incremental import (
    EncodedText,
    ReencodedText,
    TextChange,
    TokenChange,
    encode_text,
    find_text_change,
    reencode,
    restore_text,
)
from repo_cache.tokenizer import BPETokenizer
from tests.models import RealModel, real_model
from tests.repo_cache.hostile import TOKENIZERS, Edit, edits, random_chain, texts

SOURCE = Path(__file__).read_text(encoding="utf-8")


def whole(tokenizer: BPETokenizer, text: str) -> EncodedText:
    """The slow obvious way."""
    token_ids = tokenizer.encode(text)
    lengths = [len(tokenizer.token_bytes()[token_id]) for token_id in token_ids]
    return EncodedText(text.encode(), np.array(token_ids, np.uint32), np.cumsum(lengths, dtype=np.uint32))


def check(tokenizer: BPETokenizer, old: EncodedText, text: str) -> ReencodedText:
    """Encode the old text's next version; it is as it should be, and so is what is said of the change."""
    result, expected = reencode(tokenizer, old, text.encode()), whole(tokenizer, text)
    assert result.text.data == expected.data
    assert result.text.token_ids.tolist() == expected.token_ids.tolist()
    assert result.text.token_ends.tolist() == expected.token_ends.tolist()
    check_change(old, result)
    return result


def check_change(old: EncodedText, result: ReencodedText) -> None:
    """Outside the changed tokens are the old ones, inside them all changed bytes, and none too many at its ends."""
    new, change, tokens = result.text, result.change, result.tokens
    if change is None:
        assert (old.data, tokens, result.num_encoded) == (new.data, TokenChange(0, 0, 0), 0)
        return
    assert old.data[: change.start] + new.data[change.start : change.new_end] + old.data[change.old_end :] == new.data
    first, second = old.token_ids.tolist(), new.token_ids.tolist()
    assert first[: tokens.start] + second[tokens.start : tokens.new_end] + first[tokens.old_end :] == second
    assert max(begin(old, tokens.start), begin(new, tokens.start)) <= change.start
    assert begin(old, tokens.old_end) >= change.old_end
    assert begin(new, tokens.new_end) >= change.new_end
    assert tokens.new_end - tokens.start <= result.num_encoded
    if tokens.start < min(tokens.old_end, tokens.new_end) and first[tokens.start] == second[tokens.start]:
        assert begin(new, tokens.start + 1) > change.start
    if tokens.start < min(tokens.old_end, tokens.new_end) and first[tokens.old_end - 1] == second[tokens.new_end - 1]:
        assert begin(old, tokens.old_end - 1) < change.old_end or begin(new, tokens.new_end - 1) < change.new_end


def begin(text: EncodedText, number: int) -> int:
    return [0, *text.token_ends.tolist()][number]


def check_chain(tokenizer: BPETokenizer, random: Random, num_edits: int) -> None:
    """Versions with a byte that the vocabulary lacks are left out."""
    versions = (text for text in random_chain(random, num_edits) if tokenizer.find_missing_byte(text.encode()) is None)
    text = encode_text(tokenizer, next(versions).encode())
    for version in versions:
        text = check(tokenizer, text, version).text


@settings(max_examples=40)  # the seeded chains are quicker by far
@given(text=texts, changes=st.lists(edits, min_size=1, max_size=4))
def test_edits_in_a_row_give_the_ids_of_the_whole_text(qwen05: RealModel, text: str, changes: list[Edit]) -> None:
    old = encode_text(qwen05.tokenizer, text.encode())
    for change in changes:
        text = change.apply(text)
        old = check(qwen05.tokenizer, old, text).text


@pytest.mark.parametrize("seed", range(8))
def test_seeded_chains_of_edits_give_the_ids_of_the_whole_text(tokenizer: BPETokenizer, seed: int) -> None:
    check_chain(tokenizer, Random(seed), 50)


@pytest.mark.long
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_hundred_thousand_edits_give_the_ids_of_the_whole_text(name: str) -> None:
    """Half of them for either tokenizer."""
    for seed in range(1000, 2000):
        check_chain(real_model(name).tokenizer, Random(seed), 50)


def test_every_line_of_a_file_changed_and_removed(tokenizer: BPETokenizer) -> None:
    lines = SOURCE.splitlines(keepends=True)
    old = encode_text(tokenizer, SOURCE.encode())
    for number in range(0, len(lines), 7):
        for line in ("", "    x = 1\n", lines[number].rstrip("\n") + "  # é\n"):
            result = check(tokenizer, old, "".join([*lines[:number], line, *lines[number + 1 :]]))
            assert result.num_encoded < 100


@pytest.mark.parametrize("token", ["<tool_call>", "<|im_end|>", "</tool_call>"])
def test_a_token_that_is_typed_and_deleted_character_by_character(tokenizer: BPETokenizer, token: str) -> None:
    versions = [f"a {token[:length]} b" for length in range(len(token) + 1)]
    versions += [f"a {token[:place]}x{token[place:]} b" for place in range(len(token))]
    text = encode_text(tokenizer, b"")
    for version in [*versions, *reversed(versions), f"{token}{token}", f"{token[1:]}{token}", ""]:
        text = check(tokenizer, text, version).text


def test_the_same_text_again_costs_nothing(tokenizer: BPETokenizer) -> None:
    text = encode_text(tokenizer, SOURCE.encode())
    assert check(tokenizer, text, SOURCE).text is text


def test_encoded_equals_the_obvious_way_and_its_arrays_are_read_only(tokenizer: BPETokenizer) -> None:
    first = encode_text(tokenizer, SOURCE.encode())
    for text in (first, reencode(tokenizer, first, SOURCE.encode() + b"x").text):
        expected = whole(tokenizer, text.data.decode())
        assert text.token_ids.tolist() == expected.token_ids.tolist()
        assert text.token_ends.tolist() == expected.token_ends.tolist()
        for array in (text.token_ids, text.token_ends):
            assert array.dtype == np.uint32
            assert not array.flags.writeable


@pytest.mark.parametrize("text", ["", SOURCE, "日本\r\n<|im_end|>"])
def test_a_text_is_restored_from_its_ids(tokenizer: BPETokenizer, text: str) -> None:
    first = encode_text(tokenizer, text.encode())
    for again in (restore_text(tokenizer, first.token_ids), restore_text(tokenizer, first.token_ids, first.data)):
        assert again.data == first.data
        assert again.token_ends.tolist() == first.token_ends.tolist()


@pytest.mark.parametrize("data", [b"a\xff b", b"ab \xe6\x97", b"\x97 a b", b"a\xed\xa0\x80b"])
def test_bytes_that_are_not_utf8_are_refused_where_they_stand(tokenizer: BPETokenizer, data: bytes) -> None:
    with pytest.raises(UnicodeDecodeError) as expected:
        data.decode()
    for old in (b"", b"a b", "a日 b".encode(), b"x" * 500 + b" a"):
        with pytest.raises(UnicodeDecodeError) as error:
            reencode(tokenizer, encode_text(tokenizer, old), data)
        assert error.value.args == expected.value.args


def test_a_byte_that_the_vocabulary_lacks_is_refused(smollm2: RealModel) -> None:
    text = encode_text(smollm2.tokenizer, b"a b c")
    with pytest.raises(TokenizerError, match="0x06"):
        reencode(smollm2.tokenizer, text, b"a b\x06 c")


def test_a_pre_tokenizer_of_which_nothing_is_proven_has_the_whole_text_encoded(
    qwen05: RealModel, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    qwen05.tokenizer.save(path)
    library = Tokenizer.from_file(str(path))
    parts = [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    library.pre_tokenizer = pre_tokenizers.Sequence(parts)
    library.save(str(path))
    tokenizer = BPETokenizer.from_file(path)
    assert tokenizer.safe_cuts is None
    text = encode_text(tokenizer, b"a b\n  c")
    for version in ("a b\n  1", "", "a<tool_call>b"):
        result = check(tokenizer, text, version)
        assert result.num_encoded == len(result.text.token_ids)
        text = result.text


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
