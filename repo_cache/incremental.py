"""Encodes a changed text incrementally, with the same ids as encoding all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from repo_cache.safe_cuts import SafeCuts
from repo_cache.tokenizer import BPETokenizer

T = TypeVar("T", np.uint8, np.uint32)

_BLOCK = 1 << 16
"""Elements compared at once: few enough to stay in the cache, and many enough to hide Python's overhead."""


@dataclass(frozen=True, slots=True)
class TextChange:
    """`old[start:old_end]` became `new[start:new_end]`; byte offsets, never inside a UTF-8 character."""

    start: int
    old_end: int
    new_end: int


def find_text_change(old: bytes, new: bytes) -> TextChange | None:
    """Return the smallest range that differs; None if the texts are equal. Both are UTF-8.

    If several ranges are possible the last one is returned, because the common prefix is taken first: for 'aa' and
    'aaa' the change is (2, 2, 3).
    """
    if old == new:
        return None
    first, second = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    shorter = min(len(old), len(new))
    start = count_equal_prefix(first[:shorter], second[:shorter])
    while _is_inside_character(old, start) or _is_inside_character(new, start):
        start -= 1
    rest = shorter - start
    num_behind = count_equal_suffix(first[len(old) - rest :], second[len(new) - rest :])
    while _is_inside_character(old, len(old) - num_behind):  # the text after it is the same in both
        num_behind -= 1
    return TextChange(start, len(old) - num_behind, len(new) - num_behind)


def count_equal_prefix(first: NDArray[T], second: NDArray[T]) -> int:
    """Count the equal elements at the beginning of two arrays of one length."""
    for begin in range(0, len(first), _BLOCK):
        differs = first[begin : begin + _BLOCK] != second[begin : begin + _BLOCK]
        place = int(differs.argmax())
        if differs[place]:
            return begin + place
    return len(first)


def count_equal_suffix(first: NDArray[T], second: NDArray[T]) -> int:
    """Count the equal elements at the end of two arrays of one length."""
    for end in range(len(first), 0, -_BLOCK):
        differs = first[max(0, end - _BLOCK) : end] != second[max(0, end - _BLOCK) : end]
        place = int(differs[::-1].argmax())
        if differs[len(differs) - 1 - place]:
            return len(first) - end + place
    return len(first)


def _is_inside_character(data: bytes, offset: int) -> bool:
    return 0 < offset < len(data) and data[offset] & 0xC0 == 0x80


@dataclass(frozen=True)
class EncodedText:
    """A text, its tokens, and the end of each. The arrays are read-only."""

    data: bytes
    token_ids: NDArray[np.uint32]
    token_ends: NDArray[np.uint32]
    """The byte offset after each token, [num_tokens]; a token may end inside a UTF-8 character."""


@dataclass(frozen=True, slots=True)
class TokenChange:
    """Tokens `[start, old_end)` became `[start, new_end)`; they contain every byte of the text's change."""

    start: int
    old_end: int
    new_end: int


@dataclass(frozen=True, slots=True)
class ReencodedText:
    """The next version of a text."""

    text: EncodedText
    change: TextChange | None
    """The bytes that were replaced; None if the text did not change."""
    tokens: TokenChange
    """The tokens that were replaced; (0, 0, 0) if the text did not change."""
    num_encoded: int
    """The number of encoded tokens, at least those that changed."""


def encode_text(tokenizer: BPETokenizer, data: bytes) -> EncodedText:
    """Encode a whole text. Raises UnicodeDecodeError, and TokenizerError for a byte that the vocabulary lacks."""
    return restore_text(tokenizer, tokenizer.encode_batch([data.decode()])[0], data)


def restore_text(tokenizer: BPETokenizer, token_ids: NDArray[np.uint32], data: bytes | None = None) -> EncodedText:
    """Return the encoded text of some ids. `data` is their text, if it is known."""
    if data is None:
        table = tokenizer.token_bytes()
        data = b"".join([table[token_id] for token_id in token_ids.tolist()])
    return EncodedText(data, token_ids, tokenizer.compute_token_ends(token_ids))


def reencode(tokenizer: BPETokenizer, old: EncodedText, data: bytes) -> ReencodedText:
    """Encode the next version of `old`; equal to `encode_text(tokenizer, data)`, and raises the same errors.

    Let p be the last safe cut (`safe_cuts.py`) whose context ends before the change, and q the first one whose context
    begins after it. Both are safe in the old text and in the new one, because both contain the contexts. So, for either
    text, T(text) = T(text[:p]) + T(text[p:q]) + T(text[q:]). The first and the last part are equal in both: their ids
    are those of the old text, and only the text between p and q is encoded. It also follows that one of the old text's
    tokens ends at p, and one at q.
    """
    change = find_text_change(old.data, data)
    if change is None:
        return ReencodedText(old, None, TokenChange(0, 0, 0), 0)
    window = _find_window(tokenizer.safe_cuts, data, change)
    shift = change.old_end - change.new_end
    first, behind = _count_tokens(old, window.start), _count_tokens(old, window.stop + shift)
    ids = np.array(tokenizer.encode(_decode_window(data, window)), np.uint32)
    ends = tokenizer.compute_token_ends(ids) + np.uint32(window.start)
    ends_behind = old.token_ends[behind:] - np.uint32(shift % (1 << 32))  # unsigned numbers wrap around
    text = EncodedText(
        data,
        _make_read_only(np.concatenate([old.token_ids[:first], ids, old.token_ids[behind:]])),
        _make_read_only(np.concatenate([old.token_ends[:first], ends, ends_behind])),
    )
    tokens = _narrow_change(old, text, change, TokenChange(first, behind, first + len(ids)))
    return ReencodedText(text, change, tokens, len(ids))


def _find_window(cuts: SafeCuts | None, data: bytes, change: TextChange) -> range:
    """Return the range of bytes of the new text to encode."""
    if cuts is None:
        return range(len(data))
    return range(cuts.find_last_before(data, change.start), cuts.find_first_after(data, change.new_end))


def _decode_window(data: bytes, window: range) -> str:
    """Return the window's text; the text outside is UTF-8, as in the old text."""
    try:
        return data[window.start : window.stop].decode()
    except UnicodeDecodeError:
        data.decode()  # raises with the position in the whole text
        raise


def _count_tokens(text: EncodedText, num_bytes: int) -> int:
    """Count the tokens in the first bytes, which end at the end of a token."""
    number = int(text.token_ends.searchsorted(np.uint32(num_bytes), side="right"))
    assert num_bytes == (int(text.token_ends[number - 1]) if number else 0), "a safe cut lies between two tokens"
    return number


def _narrow_change(old: EncodedText, new: EncodedText, change: TextChange, tokens: TokenChange) -> TokenChange:
    """Remove equal tokens at both ends that contain nothing of the text's change."""
    first, second = old.token_ids[tokens.start : tokens.old_end], new.token_ids[tokens.start : tokens.new_end]
    shorter = min(len(first), len(second))
    before = old.token_ends.searchsorted(np.uint32(change.start), side="right")  # tokens that end before the change
    behind = old.token_ends.searchsorted(np.uint32(change.old_end)) + 1 if change.old_end else 0
    start = min(count_equal_prefix(first[:shorter], second[:shorter]), int(before) - tokens.start)
    rest = shorter - start
    end = count_equal_suffix(first[len(first) - rest :], second[len(second) - rest :])
    end = max(0, min(end, tokens.old_end - int(behind)))
    return TokenChange(tokens.start + start, tokens.old_end - end, tokens.new_end - end)


def _make_read_only(array: NDArray[np.uint32]) -> NDArray[np.uint32]:
    array.flags.writeable = False
    return array
