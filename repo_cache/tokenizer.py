"""The interface to the `tokenizers` library: lossless byte-level BPE tokenizers with a cache of words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Lock

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from repo_cache.errors import TokenizerError
from repo_cache.safe_cuts import QWEN2_REGEX, SafeCuts, make_safe_cuts

_GROUP_CHARS = 1 << 20
"""Characters encoded together: enough work for the library's threads, and short waits."""
_PIECE_CHARS = 1 << 16
"""Characters split into words at once, during which no other thread runs Python: about 3 ms."""

_MAX_WORDS = 1 << 17
_MAX_WORD_CHARS = 1 << 21
"""The limit of what is cached, about 30 MB."""


class WordCache:
    """Encodes like `encode`, reusing its results for the same words. Thread-safe.

    A word is the text between two safe cuts, so the ids of a text are the concatenated ids of its words. `encode` maps
    texts to the ids of each.
    """

    def __init__(self, cuts: SafeCuts, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._cuts = cuts
        self._encode = encode
        self._ids: dict[str, bytes] = {}  # native uint32, so joined bytes are joined ids
        self._num_chars = 0
        self._lock = Lock()

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text, [num_tokens], read-only."""
        parts: list[list[bytes]] = [[] for _ in texts]
        for group in self._group_words(texts):
            with self._lock:
                self._add_words(group)
                for number, words in group:
                    parts[number].append(b"".join(map(self._ids.__getitem__, words)))
                self._limit_size()
        return [np.frombuffer(part[0] if len(part) == 1 else b"".join(part), np.uint32) for part in parts]

    def _group_words(self, texts: Sequence[str]) -> Iterator[list[tuple[int, list[str]]]]:
        """Yield groups of words of parts of the texts, each with its text's number."""
        group: list[tuple[int, list[str]]] = []
        num_chars = 0
        for number, text in enumerate(texts):
            for piece in self._cuts.split_pieces(text, _PIECE_CHARS):
                group.append((number, self._cuts.split_words(piece)))
                num_chars += len(piece)
                if num_chars >= _GROUP_CHARS:
                    yield group
                    group, num_chars = [], 0
        yield group

    def _add_words(self, group: list[tuple[int, list[str]]]) -> None:
        new: set[str] = set()
        for _, words in group:
            new.update(words)
        unknown = list(new.difference(self._ids))
        for word, ids in zip(unknown, self._encode(unknown), strict=True):
            self._ids[word] = np.array(ids, np.uint32).tobytes()
            self._num_chars += len(word)

    def _limit_size(self) -> None:
        if len(self._ids) > _MAX_WORDS or self._num_chars > _MAX_WORD_CHARS:
            self._ids = {}
            self._num_chars = 0


PROBE = "x  e\u0301 \u212b\r\n\tÀ\u200d\n"
"""Text that a lossy tokenizer would change: blanks, decomposed and compatibility characters, line endings."""

CONTROL, USER_DEFINED = 3, 4
"""Token types of GGUF's `tokenizer.ggml.token_type` that are matched as a whole."""


BLANK = "\u2581"
"""Stands for a blank in the pieces of SentencePiece (Kudo and Richardson 2018, arXiv 1808.06226)."""


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """The byte-level BPE of a GGUF file: `tokenizer.ggml.{tokens,token_type,merges,pre}`."""

    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]
    pre: str


class BPETokenizer:
    """Converts text to token ids and back exactly: `decode(encode(text)) == text`, or `encode` raises.

    `encode` treats text as text: '<|im_end|>' in a user's file becomes ordinary tokens and can never end a turn.
    `encode_template` is for our own text, in which such names are control tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer`: byte-level, or with BLANK for a blank and tokens for single bytes (as Gemma's)."""
        if isinstance(tokenizer.normalizer, normalizers.NFC):
            tokenizer.normalizer = None  # it rewrites decomposed characters; files must be decoded unchanged
        tokenizer.no_truncation()  # a `tokenizer.json` may ask for it
        tokenizer.no_padding()
        tokenizer.model.dropout = None  # so that a text has the same ids each time
        self._controls = tokenizer
        description = tokenizer.to_str()
        self.fingerprint = blake2b(f"{tokenizers.__version__} {description}".encode(), digest_size=16).digest()
        """Of all that decides which ids a text has, the library's version too; 16 bytes."""
        self._plain = Tokenizer.from_str(description)
        self._plain.encode_special_tokens = True
        self._has_blanks = _falls_back_to_bytes(tokenizer)
        self._token_bytes = _list_piece_bytes(tokenizer) if self._has_blanks else _list_token_bytes(tokenizer)
        self.safe_cuts = _find_safe_cuts(tokenizer)
        """Where a text may be cut and its parts encoded apart; None where nothing is proven of the pre-tokenizer."""
        self._word_cache = WordCache(self.safe_cuts, self._encode_each) if self.safe_cuts is not None else None
        self._token_lens = np.array([len(token) for token in self._token_bytes], np.uint32)
        self._missing_bytes = bytes({*range(256)} - {token[0] for token in self._token_bytes if len(token) == 1})
        added = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
        if self._has_blanks:
            added = [token for token in added if BLANK not in token.content]
        probe = PROBE + "".join(f" {token.content} " for token in added)  # an added token may consume blanks around it
        if self.decode(self.encode(probe)) != probe:
            raise TokenizerError("the tokenizer changes text (prefix blank or normaliser); files would be damaged")

    @classmethod
    def from_file(cls, path: Path) -> BPETokenizer:
        """Read a `tokenizer.json`. Raises TokenizerError if it is damaged, or changes the bytes of a text."""
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every fault
            raise TokenizerError(f"cannot read {path}: {error}") from error
        is_known = isinstance(tokenizer.decoder, decoders.ByteLevel) or _falls_back_to_bytes(tokenizer)
        if not isinstance(tokenizer.model, models.BPE) or not is_known:
            raise TokenizerError(f"{path} is not a BPE tokenizer that keeps every byte; only those are supported")
        return cls(tokenizer)

    @classmethod
    def from_gguf(cls, vocabulary: GGUFVocabulary) -> BPETokenizer:
        """Build the tokenizer that a GGUF file describes. Raises TokenizerError."""
        if len(vocabulary.tokens) != len(vocabulary.token_types):
            raise TokenizerError(
                f"the vocabulary has {len(vocabulary.tokens)} tokens and {len(vocabulary.token_types)} token types"
            )
        ids = {token: number for number, token in enumerate(vocabulary.tokens)}
        merges = [_parse_merge(merge) for merge in vocabulary.merges]
        try:
            tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, fuse_unk=False, byte_fallback=False))
        except Exception as error:  # as above
            raise TokenizerError(f"the vocabulary and the merges do not fit together: {error}") from error
        tokenizer.pre_tokenizer = _make_pre_tokenizer(vocabulary.pre)
        tokenizer.decoder = decoders.ByteLevel()
        for token, kind in zip(vocabulary.tokens, vocabulary.token_types, strict=True):
            if kind in (CONTROL, USER_DEFINED):
                tokenizer.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False)])
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text in which nothing is a control token.

        Raises TokenizerError if the vocabulary has no token for one of its bytes (SmolLM2 has none for U+0006).
        """
        self._check_bytes(text)
        return self._plain.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text as `encode` does, [num_tokens], read-only. Runs on all cores without the GIL.

        Raises TokenizerError as `encode` does; `find_missing_byte` finds the text concerned beforehand.
        """
        for text in texts:
            self._check_bytes(text)
        if self._word_cache is not None:
            return self._word_cache.encode_batch(texts)
        arrays = [np.array(ids, np.uint32) for ids in self._encode_each(list(texts))]
        for array in arrays:
            array.flags.writeable = False
        return arrays

    def find_missing_byte(self, data: bytes) -> int | None:
        """Return a byte of the text for which the vocabulary has no token, or BLANK's first where that stands for a
        blank; None if the text can be encoded.
        """
        if self._has_blanks and BLANK.encode() in data:
            return BLANK.encode()[0]
        if len(data.translate(None, self._missing_bytes)) == len(data):  # fast, and nearly always true
            return None
        return min(set(self._missing_bytes).intersection(data))

    def compute_token_ends(self, token_ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the byte offset after each token, [num_tokens], read-only."""
        ends = np.cumsum(self._token_lens[token_ids], dtype=np.uint32)
        ends.flags.writeable = False
        return ends

    def encode_template(self, text: str) -> list[int]:
        """Return the token ids of our own text, in which names of control tokens are control tokens."""
        return self._controls.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the ids, control tokens by name; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self._token_bytes[token_id] for token_id in token_ids).decode("utf-8", errors="replace")

    def get_control_id(self, token: str) -> int | None:
        """Return the id of a control token such as '<|im_end|>'; None for ordinary text ('</s>' for Qwen)."""
        number = self._controls.token_to_id(token)
        added = self._controls.get_added_tokens_decoder()
        return number if number in added and added[number].special else None

    def token_bytes(self) -> list[bytes]:
        """Return the bytes of each id; empty for ids without a token."""
        return self._token_bytes

    def save(self, path: Path) -> None:
        """Write a `tokenizer.json` that `from_file` can read."""
        self._controls.save(str(path))

    def __reduce__(self) -> tuple[type[BPETokenizer], tuple[Tokenizer]]:
        """Pickle as the text of a `tokenizer.json`."""
        return BPETokenizer, (self._controls,)

    def _encode_each(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._plain.encode_batch_fast(texts, add_special_tokens=False)]

    def _check_bytes(self, text: str) -> None:
        missing = self.find_missing_byte(text.encode()) if self._missing_bytes or self._has_blanks else None
        if missing is not None:
            raise TokenizerError(f"the model's vocabulary has no token for the byte 0x{missing:02x} of the text")


def _list_token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    added = tokenizer.get_added_tokens_decoder()
    by_id = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    unicode_to_byte = _map_characters_to_bytes()

    def bytes_of(number: int) -> bytes:
        if number in added:
            return added[number].content.encode()
        return bytes(unicode_to_byte[character] for character in by_id.get(number, ""))

    try:
        return [bytes_of(number) for number in range(max(by_id, default=-1) + 1)]
    except KeyError as error:
        raise TokenizerError(f"the vocabulary is not byte-level: it holds the character {error.args[0]!r}") from None


def _falls_back_to_bytes(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer writes blanks as BLANK, adds none before a text, and has tokens for single bytes."""
    if not isinstance(tokenizer.model, models.BPE) or not tokenizer.model.byte_fallback:
        return False
    normalizer = json.loads(tokenizer.to_str())["normalizer"]
    return bool(normalizer == {"type": "Replace", "pattern": {"String": " "}, "content": BLANK})


BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


def _list_piece_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each id of a tokenizer that falls back to bytes."""
    added = tokenizer.get_added_tokens_decoder()
    by_id = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}

    def bytes_of(number: int) -> bytes:
        piece = by_id.get(number, "")
        if number in added and added[number].special:
            return piece.encode()
        byte = BYTE_TOKEN.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace(BLANK, " ").encode()

    return [bytes_of(number) for number in range(max(by_id, default=-1) + 1)]


def _find_safe_cuts(tokenizer: Tokenizer) -> SafeCuts | None:
    added = tokenizer.get_added_tokens_decoder().values()
    reach_out = any(token.single_word or token.lstrip or token.rstrip for token in added)
    if tokenizer.normalizer is not None or tokenizer.pre_tokenizer is None or reach_out:
        return None
    return make_safe_cuts(json.loads(tokenizer.pre_tokenizer.__getstate__()), [token.content for token in added])


def _parse_merge(merge: str) -> tuple[str, str]:
    left, blank, right = merge.partition(" ")
    if not (left and blank and right):
        raise TokenizerError(f"the merge {merge!r} is not two tokens with a blank between them")
    return left, right


def _make_pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer of GGUF's name.

    `qwen2` is compared with transformers in tests. `smollm` splits digits first, as the name says; transformers 5.23
    does not know it and cuts like GPT-2. SmolLM2's own `tokenizer.json` was not available for comparison.
    """
    match kind:
        case "qwen2":
            split: pre_tokenizers.PreTokenizer = pre_tokenizers.Split(Regex(QWEN2_REGEX), behavior="isolated")
            return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        case "smollm":
            split = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    raise TokenizerError(f"pre-tokenizer {kind!r} is not supported; supported are: qwen2, smollm")


def _map_characters_to_bytes() -> dict[str, int]:
    """Invert GPT-2's mapping of bytes to printable characters: the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return table
