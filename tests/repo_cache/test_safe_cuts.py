"""Texts that are encoded in parts or many at once have the ids that each whole text has alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import compress, product, zip_longest
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from repo_cache import tokenizer as word_cache
from repo_cache.errors import TokenizerError
from repo_cache.safe_cuts import LLAMA3_REGEX, QWEN2_REGEX, SafeCuts, make_safe_cuts
from repo_cache.tokenizer import BPETokenizer, WordCache
from tests.models import RealModel, real_model
from tests.repo_cache.hostile import random_text, texts

# Safe cuts: the parts' ids are the whole's, in all short texts over one character of every kind.


KINDS = "sL \t\n\r'(7é\u3000²"
"""A contraction's letter, another, blanks, line ends, its mark, punctuation, a digit; and three beyond ASCII."""

TOKENS = {
    "no added tokens": [],
    "letters and punctuation": ["(s(", "(L7", "'L"],
    "blanks": ["  ", "\t(", "\n\n"],
    "ends": ["L(", "7 ", "(", "s\n", "L'"],
}


def find_all_cuts(cuts: SafeCuts, text: str) -> list[int]:
    """All safe cuts of a text, in characters."""
    return [found.start() for found in cuts._cut.finditer(text, 1)]


def byte_level(*, use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def by_regex(regex: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(regex), behavior="isolated")
    return pre_tokenizers.Sequence([split, byte_level(use_regex=False)])


PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt2": lambda: byte_level(use_regex=True),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]
    ),
    "qwen2": lambda: by_regex(QWEN2_REGEX),
    "llama3": lambda: by_regex(LLAMA3_REGEX),
}


class Words:
    """Pre-tokens and added tokens of a text; no merges, so what differs between two cuts of it shows."""

    def __init__(self, kind: str, tokens: list[str]) -> None:
        alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        self._tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
        self._tokenizer.pre_tokenizer = PRE_TOKENIZERS[kind]()
        added = [AddedToken(token, special=number % 2 == 1, normalized=False) for number, token in enumerate(tokens)]
        self._tokenizer.add_tokens(added)
        self._tokenizer.encode_special_tokens = True
        found = make_safe_cuts(self.description, tokens)
        assert found is not None
        self.cuts: SafeCuts = found
        self.of = cache(self._of)

    @property
    def description(self) -> Any:
        assert self._tokenizer.pre_tokenizer is not None
        return json.loads(self._tokenizer.pre_tokenizer.__getstate__())

    def _of(self, text: str) -> list[tuple[int, ...]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        words: dict[int | None, list[int]] = {}
        for token_id, word in zip(encoding.ids, encoding.word_ids, strict=True):
            words.setdefault(word, []).append(token_id)
        return [tuple(ids) for ids in words.values()]


def unsafe(words: Words, max_len: int) -> list[tuple[str, int]]:
    """Texts, and cuts of them that are called safe and change what a text is made of."""
    found, num_cuts = [], 0
    for length in range(2, max_len + 1):
        for text in map("".join, product(KINDS, repeat=length)):
            for place in find_all_cuts(words.cuts, text):
                num_cuts += 1
                if words.of(text) != words.of(text[:place]) + words.of(text[place:]):
                    found.append((text, place))
    assert num_cuts > 10_000
    return found


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
@pytest.mark.parametrize("tokens", TOKENS.values(), ids=TOKENS)
def test_cuts_of_all_short_texts_are_safe(kind: str, tokens: list[str]) -> None:
    assert unsafe(Words(kind, tokens), 4) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
@pytest.mark.parametrize("tokens", TOKENS.values(), ids=TOKENS)
def test_cuts_of_all_texts_of_five_characters_are_safe(kind: str, tokens: list[str]) -> None:
    assert unsafe(Words(kind, tokens), 5) == []


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_words_and_pieces_are_the_text_cut_at_safe_cuts(kind: str) -> None:
    random = Random(kind)
    cuts = Words(kind, ["<tool_call>", "<|im_end|>"]).cuts
    for _ in range(200):
        text = random_text(random, random.choice([0, 1, 5, 60]))
        for parts in (cuts.split_words(text), list(cuts.split_pieces(text, random.randrange(1, 30)))):
            assert "".join(parts) == text
            assert "" not in parts
            borders = {sum(map(len, parts[: number + 1])) for number in range(len(parts))}
            assert borders <= {*find_all_cuts(cuts, text), len(text)}


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_the_nearest_cuts_of_a_place_are_those_of_the_text_up_to_it_and_from_it_on(kind: str) -> None:
    random = Random(kind)
    cuts = Words(kind, ["<tool_call>", "<|im_end|>"]).cuts
    for _ in range(300):
        text = random.choice(["x", "日本", ""]) * random.choice([0, 50, 500]) + random_text(random, 20)
        place = random.randrange(len(text) + 1)
        before, behind = text[:place], text[place:]
        last = before[: max([0, *find_all_cuts(cuts, before)])]
        assert cuts.find_last_before(text.encode(), len(before.encode())) == len(last.encode())
        first = before + behind[: min([*find_all_cuts(cuts, behind), len(behind)])]
        assert cuts.find_first_after(text.encode(), len(before.encode())) == len(first.encode())


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_a_program_is_cut_at_least_once_a_line(kind: str) -> None:
    program = (
        "def f(x):\n    if x[0] == 'a':\n        return {1: 2}\n\n\n    });\n    });\nclass A:\n\tpass\n日本\n語 x\n"
    )
    cuts = Words(kind, []).cuts
    for line in program.splitlines(keepends=True)[:-1]:
        start = program.index(line)
        inside = range(start + 1, start + len(line) + 1)
        assert not line.strip() or any(place in inside for place in find_all_cuts(cuts, program)), line


@pytest.mark.parametrize(
    "description",
    [
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        {"type": "Whitespace"},
        {"type": "Sequence", "pretokenizers": []},
        None,
    ],
)
def test_no_cut_is_called_safe_for_a_pre_tokenizer_that_is_not_known(description: object) -> None:
    assert make_safe_cuts(description, []) is None


def test_a_regex_that_differs_by_a_character_is_not_known() -> None:
    description = json.loads(by_regex(QWEN2_REGEX.replace("[\\r\\n]*", "[\\r\\n/]*")).__getstate__())
    assert make_safe_cuts(description, []) is None


# Many texts at once, whatever was encoded before.


ROOT = Path(__file__).resolve().parents[2]


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
