"""Token ids equal those of transformers, for every catalogue tokenizer, over real edits and awkward Unicode."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from tests.models import SHARED_DATA, RealModel, real_model

EDGE_CASES = [
    "",
    " ",
    "\n",
    "\r\n",
    "\t\tx\t \n  y",
    "a\u00a0b\u2007c\u3000d\u200be\ufefff",
    "line\u2028separator\u2029end\x85\x0b\x0c\x1c",
    "\x00\x01\x7f\x80\x9f",
    "e\u0301 é ﬁ ﷺ \u212b Å ﬀ \u1e9b\u0323",
    "Straße STRASSE ǅ İi ıI ς",
    "don't DON'T I'LL we've 'S 'ſ it’s",
    "def f(x):\n    return x  # comment   \n\n\n\n\tif y:\n",
    "100200300 3.14159 0x1F 1e-9 1_000 v1.2.3",
    "x²+½y³ ٣٤٥ 一二三 Ⅷ ๑๒๓ 𝟙𝟚",
    "a  1\n 2\n\n3\t4\u00a05\u30006",
    "日本語のテキスト、한국어 العربية עברית ไทย हिन्दी",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☃️ 🏴\U000e0067\U000e0062\U000e007f",
    "\u202eabc\u202c \u2066x\u2069 \u200d\u200c",
    "\U0010ffff\U000f0000\ue000\ufffd\ufffe",
    "Ḽơᶉëᶆ ȋṕšᶙṁ" + "\u0300\u0301\u0302" * 9,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 20,
    " " * 130 + "x" + "\n" * 70 + "y" + "\t" * 33,
    "!@#$%^&*()_+-=[]{}|;:'\",.<>/?`~" * 3,
    "<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n",
    "< |im_end|> <|im_end |> <||> <|",
    "</s><unk>[PAD151700]<tool>",
    "\ufeff#!/usr/bin/env python\r\nprint(1)\r",
    'PS C:\\Users\\x> "\\u0041" \\n %s {0}',
]
GZIP_MAGIC = b"\x1f\x8b"
CONTROL_NAMES = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
MODELS = ["smollm2-135m", "qwen2.5-coder-0.5b"]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> RealModel:
    return real_model(request.param)


@cache
def transformers_tokenizer(name: str) -> Tokenizer:
    """What transformers makes of the same file."""
    path = real_model(name).path
    reference: Tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    return reference


@cache
def reference(name: str) -> Tokenizer:
    """Transformers' tokenizer; that of SmolLM2 with the cut that the model was trained with.

    GGUF calls it `smollm`. Transformers 5 does not know the name and falls back to GPT-2's cut, while the model's own
    `tokenizer.json` and llama.cpp part digits first.
    """
    tokenizer = Tokenizer.from_str(transformers_tokenizer(name).to_str())
    if name == "smollm2-135m":
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    return tokenizer


def reference_ids(tokenizer: Tokenizer, texts: list[str], *, controls: bool = False) -> list[list[int]]:
    tokenizer.encode_special_tokens = not controls
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


@cache
def shared_texts() -> list[str]:
    """Every text of the shared data, each once: whole files, and all strings in JSON ones."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"{SHARED_DATA} is not there: the real edits of the project's machines")
    texts: set[str] = set()
    for path in SHARED_DATA.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            raw = gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
            texts.update(texts_of_file(path.name, raw.decode("utf-8", errors="replace")))
    assert len(texts) > 1000
    return sorted(texts)


def texts_of_file(name: str, text: str) -> Iterator[str]:
    if ".jsonl" in name:
        for line in text.splitlines():
            yield from strings_in(json.loads(line))
    elif text.startswith("{\n"):
        yield from strings_in(json.loads(text))
    else:
        yield text


def strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def has_digit_behind_blank(text: str) -> bool:
    return any(first.isspace() and second.isnumeric() for first, second in pairwise(text))


def sample_of_shared_texts() -> list[str]:
    """Return one in twenty of the shared texts, by their hash: all of them take minutes and gigabytes."""
    return [text for text in shared_texts() if not sha256(text.encode("utf-8", "replace")).digest()[0] % 20]


def different(texts: list[str], first: list[list[int]], second: list[list[int]]) -> list[str]:
    return [text for text, ours, theirs in zip(texts, first, second, strict=True) if ours != theirs]


def test_ids_of_edge_cases_equal_transformers(model: RealModel) -> None:
    ours = [model.tokenizer.encode(text) for text in EDGE_CASES]
    assert different(EDGE_CASES, ours, reference_ids(reference(model.name), EDGE_CASES)) == []


def test_ids_of_shared_texts_equal_transformers(model: RealModel) -> None:
    assert_same_ids(model, sample_of_shared_texts())


@pytest.mark.long
def test_ids_of_all_shared_texts_equal_transformers(model: RealModel) -> None:
    texts = shared_texts()
    for at in range(0, len(texts), 500):
        assert_same_ids(model, texts[at : at + 500])


def assert_same_ids(model: RealModel, texts: list[str]) -> None:
    expected = reference_ids(reference(model.name), texts)
    assert different(texts, [model.tokenizer.encode(text) for text in texts], expected) == []


def test_ids_of_templates_equal_transformers_with_control_tokens(model: RealModel) -> None:
    texts = [f"{name}user\nx 1{other}\n {name} <tool_call>" for name in CONTROL_NAMES for other in CONTROL_NAMES]
    expected = reference_ids(reference(model.name), texts, controls=True)
    assert [model.tokenizer.encode_template(text) for text in texts] == expected


def test_smollm2_differs_from_transformers_own_cut_only_at_digits_behind_blanks(smollm2: RealModel) -> None:
    sample = sample_of_shared_texts()
    expected = reference_ids(transformers_tokenizer(smollm2.name), sample)
    texts = different(sample, [smollm2.tokenizer.encode(text) for text in sample], expected)
    assert texts, "transformers reads `smollm` now: compare with it as it is"
    assert [text for text in texts if not has_digit_behind_blank(text)] == []


def test_qwen_15b_has_the_tokenizer_of_05b(qwen05: RealModel, qwen15: RealModel) -> None:
    """So what holds of the one's ids holds of the other's, without minutes of comparing."""
    description = tokenizer_bytes(qwen05.path)
    assert len(description) > 4_000_000
    assert tokenizer_bytes(qwen15.path) == description


def tokenizer_bytes(path: Path) -> bytes:
    """The part of a GGUF file that holds the tokenizer's kind, cut, tokens, token types and merges."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as raw:
        start, end = raw.find(b"tokenizer.ggml.model"), raw.find(b"tokenizer.ggml.eos_token_id")
        part = raw[start:end]
    assert all(f"tokenizer.ggml.{key}".encode() in part for key in ("pre", "tokens", "token_type", "merges"))
    return part
