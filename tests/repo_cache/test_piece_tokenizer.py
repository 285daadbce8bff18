"""Tokenizers as Gemma's: pieces with U+2581 for a blank, and tokens for single bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers

from repo_cache.errors import TokenizerError
from repo_cache.tokenizer import BLANK, BPETokenizer

PIECES = ["d", "e", "f", "r", "t", "u", "n", BLANK, "(", ")", ":", "\n", "é", "de", "def", "re", BLANK + BLANK, "\n\n"]
MERGES = ["d e", "de f", "r e", f"{BLANK} {BLANK}", "\n \n"]
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]


def write_tokenizer(folder: Path, added: tuple[str, ...] = ()) -> Path:
    """As transformers builds Gemma's, with a few pieces."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    built = transformers.GemmaTokenizer(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in MERGES])
    tokenizer: Tokenizer = built.backend_tokenizer
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in added])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BPETokenizer:
    return BPETokenizer.from_file(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), ("<table>", BLANK * 3)))


@given(st.text().filter(lambda text: BLANK not in text))
def test_a_text_comes_back_as_it_was(tokenizer: BPETokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes()[each] for each in ids) == text.encode()


def test_pieces_are_merged_and_blanks_are_theirs(tokenizer: BPETokenizer) -> None:
    pieces = [tokenizer.token_bytes()[each] for each in tokenizer.encode("def f():\n\n    return")]
    assert pieces[0] == b"def"
    assert b"  " in pieces
    assert b"\n\n" in pieces
    assert [tokenizer.token_bytes()[each] for each in tokenizer.encode("世")] == [b"\xe4", b"\xb8", b"\x96"]


def test_control_tokens_are_text_in_a_file_and_control_in_a_template(tokenizer: BPETokenizer) -> None:
    end = tokenizer.get_control_id("<end_of_turn>")
    assert end is not None
    assert end not in tokenizer.encode("<end_of_turn>")
    assert tokenizer.encode_template("<end_of_turn>\n")[0] == end


def test_the_character_that_stands_for_a_blank_is_refused(tokenizer: BPETokenizer) -> None:
    with pytest.raises(TokenizerError, match="no token for the byte 0xe2"):
        tokenizer.encode(f"a{BLANK}b")
    assert tokenizer.find_missing_byte(f"a{BLANK}b".encode()) == 0xE2
    assert tokenizer.find_missing_byte("a b \u2580".encode()) is None


def test_token_ends_count_bytes(tokenizer: BPETokenizer) -> None:
    (ids,) = tokenizer.encode_batch(["def é\n"])
    assert tokenizer.compute_token_ends(ids)[-1] == len("def é\n".encode())


def test_a_tokenizer_that_adds_a_blank_is_still_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path)
    whole = json.loads(path.read_text())
    whole["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": BLANK}, whole["normalizer"]],
    }
    path.write_text(json.dumps(whole))
    with pytest.raises(TokenizerError, match="keeps every byte"):
        BPETokenizer.from_file(path)


def test_without_tokens_for_bytes_it_is_refused(tmp_path: Path) -> None:
    plain = Tokenizer(models.BPE(vocab={"a": 0, BLANK: 1}, merges=[]))
    plain.normalizer = normalizers.Replace(" ", BLANK)
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="keeps every byte"):
        BPETokenizer.from_file(tmp_path / "tokenizer.json")
