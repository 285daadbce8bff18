"""A small byte-level vocabulary in which lines can be written at any indentation, and a tokenizer for it."""

from __future__ import annotations

import re

WORDS = ["a", "b", "c", "def", "if", "x", "y", "zz", "(", ")", "...", "# ... rest ..."]
BLANKS = ["\t", "\t\t", " ", "  ", "   ", "    ", "     ", "      ", "       "]
ENDS = ["\n", "\n\n", ")\n", ")\n\n"]
VOCABULARY = [*WORDS, *(f" {word}" for word in WORDS), *BLANKS, *ENDS, "</end>", "1", "2", "3"]
TOKEN_BYTES = [token.encode() for token in VOCABULARY]

_PIECES = re.compile("|".join(re.escape(token) for token in sorted(VOCABULARY, key=len, reverse=True)))


def encode(text: str) -> list[int]:
    """The longest token first, but of blanks before a word all but the last: as byte-level tokenizers write them."""
    parts = re.split(r"([ ]+(?= [^\s]))", text)
    return [VOCABULARY.index(piece) for part in parts for piece in _PIECES.findall(part)]


def decode(token_ids: list[int]) -> str:
    """The text of the ids."""
    return b"".join(TOKEN_BYTES[token_id] for token_id in token_ids).decode()
