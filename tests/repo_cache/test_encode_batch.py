"""Many texts at once: the ids of each are those that it has alone, whatever was encoded before it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import compress, zip_longest
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repo_cache import tokenizer as word_cache
from repo_cache.errors import TokenizerError
from repo_cache.tokenizer import BPETokenizer, WordCache
from tests.models import RealModel, real_model
from tests.repo_cache.hostile import random_text, texts
from tests.repo_cache.test_safe_cuts import find_all_cuts

NAMES = ["smollm2-135m", "qwen2.5-coder-0.5b"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> BPETokenizer:
    return real_model(request.param).tokenizer


def one_by_one(tokenizer: BPETokenizer, many: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text) for text in many]


def at_once(tokenizer: BPETokenizer, many: list[str]) -> list[list[int]]:
    return [ids.tolist() for ids in tokenizer.encode_batch(many)]


@given(many=st.lists(texts, max_size=4))
def test_hostile_texts(qwen05: RealModel, many: list[str]) -> None:
    assert at_once(qwen05.tokenizer, many) == one_by_one(qwen05.tokenizer, many)


def test_sources(tokenizer: BPETokenizer) -> None:
    many = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "editor").glob("**/*.py"))]
    assert len(many) > 10
    assert at_once(tokenizer, many) == one_by_one(tokenizer, many)


def test_texts_that_are_encoded_in_many_groups_with_a_memory_that_is_full_at_once(
    qwen05: RealModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_GROUP_CHARS": 300, "_PIECE_CHARS": 70, "_MAX_WORDS": 40}.items():
        monkeypatch.setattr(word_cache, name, value)
    random = Random(0)
    many = [random_text(random, random.choice([0, 1, 10, 400])) for _ in range(30)]
    assert at_once(qwen05.tokenizer, many) == one_by_one(qwen05.tokenizer, many)


def test_what_is_kept_is_bounded(qwen05: RealModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def encode(words: list[str]) -> list[list[int]]:
        asked.append(len(words))
        return [qwen05.tokenizer.encode(word) for word in words]

    assert qwen05.tokenizer.safe_cuts is not None
    cache = WordCache(qwen05.tokenizer.safe_cuts, encode)
    for _ in range(2):
        cache.encode_batch(["a b c"])
    assert asked == [3, 0]
    monkeypatch.setattr(word_cache, "_MAX_WORD_CHARS", 100)
    cache.encode_batch(["x" * 200])
    cache.encode_batch(["a b c"])
    assert asked == [3, 0, 1, 3]


def test_many_threads(qwen05: RealModel) -> None:
    random = Random(1)
    many = [[random_text(random, 50) for _ in range(20)] for _ in range(12)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(qwen05.tokenizer.encode_batch, many))
    assert [[ids.tolist() for ids in batch] for batch in found] == [
        one_by_one(qwen05.tokenizer, batch) for batch in many
    ]


def test_arrays_are_uint32_and_read_only(tokenizer: BPETokenizer) -> None:
    for ids in tokenizer.encode_batch(["", "a", "a b " * 100_000]):
        assert ids.dtype == np.uint32
        assert not ids.flags.writeable


def test_no_texts(tokenizer: BPETokenizer) -> None:
    assert tokenizer.encode_batch([]) == []


def test_a_byte_that_the_vocabulary_lacks_is_refused_and_can_be_asked_for(smollm2: RealModel) -> None:
    with pytest.raises(TokenizerError, match="0x06"):
        smollm2.tokenizer.encode_batch(["a", "b\x06"])
    assert smollm2.tokenizer.find_missing_byte(b"a\x06") == 6
    assert smollm2.tokenizer.find_missing_byte(b"ab") is None


def pre_token_borders(tokenizer: BPETokenizer, text: str) -> list[int]:
    """Byte offsets at which a pre-token begins, and the text's length."""
    encoding = tokenizer._plain.encode(text, add_special_tokens=False)
    ends = tokenizer.compute_token_ends(np.array(encoding.ids, np.uint32)).tolist()
    words = encoding.word_ids
    last = [word != following for word, following in zip_longest(words, words[1:])]
    return [0, *compress(ends, last)]


@pytest.mark.parametrize(
    ("name", "text", "borders"),
    [
        ("smollm2-135m", "foo  b 12日\n", [0, 3, 4, 6, 7, 8, 9, 12, 13]),
        ("qwen2.5-coder-0.5b", "foo  b:\n<tool_call>12", [0, 3, 4, 6, 8, 19, 20, 21]),
        ("qwen2.5-coder-0.5b", "", [0]),
    ],
)
def test_pre_token_borders_are_where_words_end_in_bytes(name: str, text: str, borders: list[int]) -> None:
    assert pre_token_borders(real_model(name).tokenizer, text) == borders


@given(text=texts)
def test_safe_cuts_are_borders_of_pre_tokens(qwen05: RealModel, text: str) -> None:
    tokenizer = qwen05.tokenizer
    assert tokenizer.safe_cuts is not None
    cuts = [len(text[:place].encode()) for place in find_all_cuts(tokenizer.safe_cuts, text)]
    assert set(cuts) <= set(pre_token_borders(tokenizer, text))


def test_a_fingerprint_is_that_of_what_decides_the_ids(smollm2: RealModel, qwen05: RealModel, tmp_path: Path) -> None:
    qwen05.tokenizer.save(tmp_path / "tokenizer.json")
    assert BPETokenizer.from_file(tmp_path / "tokenizer.json").fingerprint == qwen05.tokenizer.fingerprint
    assert len(qwen05.tokenizer.fingerprint) == 16
    assert smollm2.tokenizer.fingerprint != qwen05.tokenizer.fingerprint
