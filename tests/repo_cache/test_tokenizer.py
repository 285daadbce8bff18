"""The tokenizer loses nothing, makes no control tokens of text, names damaged input, and agrees with tokenizers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from repo_cache.errors import TokenizerError
from repo_cache.tokenizer import BPETokenizer, GGUFVocabulary
from tests.models import SHARED_DATA, RealModel, real_model
from tests.repo_cache.hostile import TOKENIZERS

CONTROL_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

# Code-like pieces between arbitrary characters: arbitrary ones alone hardly ever meet a merge.
PIECES = ["\r\n", "    ", "\t", " 12", "self.", "<|im_end|>", "<tool_call>", "e\u0301"]
texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(PIECES)), max_size=12).map("".join)


def byte_alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def tiny_vocabulary(**changes: Any) -> GGUFVocabulary:
    tokens = [*byte_alphabet(), "ab", "<|end|>", "<tag>"]
    kinds = [NORMAL] * (len(tokens) - 2) + [CONTROL, USER_DEFINED]
    fields: dict[str, Any] = {"tokens": tokens, "token_types": kinds, "merges": ["a b"], "pre": "qwen2"}
    return GGUFVocabulary(**(fields | changes))


@given(text=texts)
def test_decoding_what_was_encoded_gives_the_text_back(qwen05: RealModel, text: str) -> None:
    tokenizer = qwen05.tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode_template(text)) == text


@given(text=texts)
def test_the_bytes_of_the_tokens_joined_are_the_bytes_of_the_text(qwen05: RealModel, text: str) -> None:
    table = qwen05.tokenizer.token_bytes()
    assert b"".join(table[token_id] for token_id in qwen05.tokenizer.encode(text)) == text.encode()


@given(text=texts)
def test_a_vocabulary_without_some_bytes_gives_the_text_back_or_refuses_it(smollm2: RealModel, text: str) -> None:
    missing = {*range(256)} - {token[0] for token in smollm2.tokenizer.token_bytes() if len(token) == 1}
    assert {0x06, 0xF1} <= missing
    if missing.isdisjoint(text.encode()):
        assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == text
    else:
        with pytest.raises(TokenizerError, match="no token for the byte"):
            smollm2.tokenizer.encode(text)


def test_every_id_of_the_model_has_its_bytes(smollm2: RealModel, qwen05: RealModel) -> None:
    for model in (smollm2, qwen05):
        assert len(model.tokenizer.token_bytes()) == model.gguf.config.vocab_size
        assert b"" not in model.tokenizer.token_bytes()


def test_qwen_has_a_token_for_every_byte_so_that_it_can_write_any_text(qwen05: RealModel) -> None:
    assert {bytes([byte]) for byte in range(256)} <= set(qwen05.tokenizer.token_bytes())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_name_of_a_control_token_in_text_gives_a_control_id(name: str) -> None:
    model = real_model(name)
    controls = {number for number, kind in enumerate(model.vocabulary.token_types) if kind == CONTROL}
    assert len(controls) >= len(CONTROL_TOKENS)
    text = "x".join(model.vocabulary.tokens[number] for number in sorted(controls))
    assert controls.isdisjoint(model.tokenizer.encode(text))
    assert controls <= set(model.tokenizer.encode_template(text))


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_a_control_token_is_one_id_in_a_template_and_known_by_name(tokenizer: BPETokenizer, token: str) -> None:
    token_id = tokenizer.get_control_id(token)
    assert token_id is not None
    before, after = tokenizer.encode("a "), tokenizer.encode("\nb")
    assert tokenizer.encode_template(f"a {token}\nb") == [*before, token_id, *after]
    assert tokenizer.decode([token_id]) == token


@pytest.mark.parametrize("name", ["</s>", "<|no_such_token|>", "a", ""])
def test_ordinary_text_has_no_control_id(tokenizer: BPETokenizer, name: str) -> None:
    assert tokenizer.get_control_id(name) is None


def test_a_token_of_the_user_defined_kind_is_text_and_no_control_token() -> None:
    tokenizer = BPETokenizer.from_gguf(tiny_vocabulary())
    tag = tokenizer.encode_template("<tag>")
    assert len(tag) == 1
    assert tokenizer.encode("a<tag>b")[1:2] == tag  # one token, as the model was trained, and not a way to end a turn
    assert tokenizer.get_control_id("<tag>") is None


def test_bytes_that_are_not_utf8_become_the_replacement_character(tokenizer: BPETokenizer) -> None:
    half = tokenizer.token_bytes().index(b"\xe2")
    assert tokenizer.decode([half]) == "\ufffd"


def test_a_saved_tokenizer_reads_back_the_same(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    again = BPETokenizer.from_file(tmp_path / "tokenizer.json")
    text = "def f(x):\n\treturn  12 + x<|im_end|><tool_call> e\u0301 \r\n"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.encode_template(text) == tokenizer.encode_template(text)
    assert again.token_bytes() == tokenizer.token_bytes()
    assert [again.get_control_id(token) for token in CONTROL_TOKENS] == [
        tokenizer.get_control_id(token) for token in CONTROL_TOKENS
    ]


def written(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A small byte-level `tokenizer.json`, changed."""
    alphabet = {character: number for number, character in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    raw = json.loads(tokenizer.to_str())
    change(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def test_a_nfc_normaliser_is_taken_off_because_files_must_come_back_as_they_were(tmp_path: Path) -> None:
    path = written(tmp_path / "tokenizer.json", lambda raw: raw.update(normalizer={"type": "NFC"}))
    tokenizer = BPETokenizer.from_file(path)
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"


def test_truncation_and_padding_that_a_file_asks_for_are_switched_off(tmp_path: Path) -> None:
    def ask(raw: dict[str, Any]) -> None:
        raw["truncation"] = {"direction": "Right", "max_length": 40, "strategy": "LongestFirst", "stride": 0}
        raw["padding"] = {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 256,
            "pad_type_id": 0,
            "pad_token": "<|end|>",
        }

    tokenizer = BPETokenizer.from_file(written(tmp_path / "tokenizer.json", ask))
    for length in (1, 50, 1000):
        assert tokenizer.decode(tokenizer.encode("y" * length)) == "y" * length


def test_merges_that_a_file_drops_at_random_are_all_made(tmp_path: Path) -> None:
    def ask(raw: dict[str, Any]) -> None:
        raw["model"]["vocab"]["ab"] = 300
        raw["model"].update(merges=["a b"], dropout=0.5)

    tokenizer = BPETokenizer.from_file(written(tmp_path / "tokenizer.json", ask))
    assert tokenizer.encode("ab" * 50) == [300] * 50


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
def test_with_a_token_that_looks_around_itself_no_cut_is_called_safe(tmp_path: Path, flag: str) -> None:
    path = written(tmp_path / "tokenizer.json", lambda raw: raw["added_tokens"][0].update({flag: True}))
    assert BPETokenizer.from_file(path).safe_cuts is None
    assert BPETokenizer.from_file(written(path, lambda raw: None)).safe_cuts is not None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda raw: raw.update(normalizer={"type": "Lowercase"}), id="lower case"),
        pytest.param(lambda raw: raw.update(normalizer={"type": "NFKC"}), id="compatibility characters"),
        pytest.param(lambda raw: raw["pre_tokenizer"].update(add_prefix_space=True), id="prefix blank"),
        pytest.param(lambda raw: raw["added_tokens"][0].update(special=False, rstrip=True), id="swallows blanks"),
        pytest.param(lambda raw: raw.update(decoder=None), id="no decoder"),
        pytest.param(lambda raw: raw["model"].update(type="WordLevel", unk_token="x"), id="not BPE"),
        pytest.param(lambda raw: raw["model"]["vocab"].update({"\u2581x": 300}), id="not byte-level"),
        pytest.param(lambda raw: raw["model"].update(vocab={}), id="no vocabulary"),
        pytest.param(lambda raw: raw["model"]["vocab"].pop("x"), id="a byte is missing"),
        pytest.param(lambda raw: raw["model"].update(merges=["x"]), id="broken merge"),
        pytest.param(dict.clear, id="empty object"),
    ],
)
def test_a_file_that_would_damage_text_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(TokenizerError):
        BPETokenizer.from_file(written(tmp_path / "tokenizer.json", change))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        BPETokenizer.from_file(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"absent\.json"):
        BPETokenizer.from_file(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"merges": ["ab"]}, "not two tokens"),
        ({"merges": ["a "]}, "not two tokens"),
        ({"merges": ["a zz"]}, "do not fit"),
        ({"token_types": [NORMAL]}, "token types"),
        ({"pre": "gpt-9"}, "gpt-9"),
        ({"tokens": ["\u2581the"], "token_types": [NORMAL], "merges": []}, "byte-level"),
        ({"tokens": [], "token_types": [], "merges": []}, "no token for the byte"),
        ({"tokens": ["a", "b", "ab"], "token_types": [NORMAL] * 3}, "no token for the byte"),
    ],
)
def test_damaged_gguf_metadata_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        BPETokenizer.from_gguf(tiny_vocabulary(**changes))


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
