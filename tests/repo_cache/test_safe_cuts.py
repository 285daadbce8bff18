"""Safe cuts: the parts' ids are the whole's, in all short texts over one character of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from repo_cache.safe_cuts import LLAMA3_REGEX, QWEN2_REGEX, SafeCuts, make_safe_cuts
from tests.repo_cache.hostile import random_text

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
