"""A file's encoder gives every text the ids that it has alone, and the same spans however it knows the file."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.llm.questions import FileEncoder
from repo_cache.chunks import cut_spans
from repo_cache.errors import TokenizerError
from repo_cache.incremental import encode_text
from repo_cache.syntax import find_language
from repo_cache.token_encoder import FileVersion, TokenEncoder
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens
from tests.models import RealModel

FILE = "".join(
    f"def step_{number}(value):\n    print({{'a': value}})\n    return value * {number}\n\n\n" for number in range(60)
)
STOP = "</updated-code>"
PIECES = st.text("ab_1 \n\t(){}'<>/=é\u3000", max_size=12)


def known(tokenizer: BPETokenizer, text: str) -> FileTokens:
    """What a watched folder knows of the file."""
    data = text.encode()
    (answer,) = TokenEncoder(tokenizer, None, 0).encode(
        [FileVersion("a.py", data, sha256(data).hexdigest())], in_bulk=False
    )
    assert answer.tokens is not None
    return answer.tokens


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("final", ["", "\n", ")\n", "\n\n", "  \n", ";\n"])
@settings(max_examples=15)
@given(place=st.integers(0, len(FILE)), length=st.integers(0, 300), new=PIECES)
def test_every_text_has_the_ids_that_it_has_alone(
    qwen05: RealModel, is_known: bool, final: str, place: int, length: int, new: str
) -> None:
    tokenizer, text = qwen05.tokenizer, FILE.rstrip("\n") + final
    encoder = FileEncoder(tokenizer, "a.py", text, known(tokenizer, text) if is_known else None)
    changed = text[:place] + new + text[place + length :]
    for near in (text, text.removesuffix("\n"), f"{text}\n{STOP}", changed, changed + STOP, new, ""):
        assert encoder.encode(near) == tokenizer.encode(near)
    assert encoder.encode_template("<|im_end|>\n") == tokenizer.encode_template("<|im_end|>\n")


@pytest.mark.parametrize("final", ["", "\n", ")\n", ";\n\n"])
def test_spans_end_where_those_of_the_whole_file_do(qwen05: RealModel, final: str) -> None:
    tokenizer, text = qwen05.tokenizer, FILE.rstrip("\n") + final
    of_file = cut_spans(
        encode_text(tokenizer, text.encode()), find_language("a.py"), tokenizer.fingerprint
    ).spans.ends.tolist()
    asked = tokenizer.encode(text.removesuffix("\n"))
    for given_tokens in (None, known(tokenizer, text)):
        encoder = FileEncoder(tokenizer, "a.py", text, given_tokens)
        ends = encoder.span_ends(asked)
        assert ends[:-1] == of_file[: len(ends) - 1]
        assert len(of_file) - len(ends) <= 1
        assert ends[-1] == len(asked)
        assert all(first < second for first, second in pairwise([0, *ends]))
        assert len(ends) > 5


def test_the_spans_of_a_watched_file_are_taken_and_not_cut_again(qwen05: RealModel) -> None:
    tokens = known(qwen05.tokenizer, FILE)
    marked = FileTokens(tokens.content_hash, tokens.token_ids, lambda ids: pytest.fail("it has its spans"))
    spans = tokens.spans
    marked.set_spans(spans)
    assert (
        FileEncoder(qwen05.tokenizer, "a.py", FILE, marked).span_ends(tokens.token_ids.tolist()) == spans.ends.tolist()
    )


def test_an_empty_file_has_no_spans(qwen05: RealModel) -> None:
    encoder = FileEncoder(qwen05.tokenizer, "a.py", "")
    assert encoder.span_ends([]) == []
    assert FileEncoder(qwen05.tokenizer, "a.py", "\n").span_ends([]) == []
    assert encoder.encode("x = 1") == qwen05.tokenizer.encode("x = 1")


def test_a_byte_that_the_vocabulary_lacks_is_refused(smollm2: RealModel) -> None:
    with pytest.raises(TokenizerError):
        FileEncoder(smollm2.tokenizer, "a.py", "a\x06b")
    with pytest.raises(TokenizerError):
        FileEncoder(smollm2.tokenizer, "a.py", "ab").encode("a\x06b")
