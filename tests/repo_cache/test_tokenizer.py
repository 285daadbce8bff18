"""The tokenizer's promises: nothing is lost, text never becomes control tokens, damaged input is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from repo_cache.errors import TokenizerError
from repo_cache.tokenizer import BPETokenizer, GGUFVocabulary
from tests.models import RealModel, real_model

NAMES = ["smollm2-135m", "qwen2.5-coder-0.5b"]
CONTROL_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

# Code-like pieces between arbitrary characters: arbitrary ones alone hardly ever meet a merge.
PIECES = ["\r\n", "    ", "\t", " 12", "self.", "<|im_end|>", "<tool_call>", "e\u0301"]
texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(PIECES)), max_size=12).map("".join)


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> BPETokenizer:
    return real_model(request.param).tokenizer


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


@pytest.mark.parametrize("name", NAMES)
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
