r"""Positions at which a text may be cut in two so that the concatenated ids of its parts are the ids of the whole.

A byte-level BPE tokenizer takes three steps: it finds the added tokens, splits the text between them into pre-tokens by
a regex, and merges bytes inside each pre-token. Let T be all of it. A *safe cut* is a position between two characters
whose neighbours, its context, prove that T(x + y) = T(x) + T(y) for any x and y with that context:

1. Added tokens. No added token, including control tokens that stay text, contains the cut's two characters side by
   side. So no added token crosses the cut, and x and y contain the same added tokens as each alone: they are searched
   from left to right, and a match depends on no text after it.
2. The regex. No alternative matches a text in which the two characters stand side by side at that place. The
   alternatives together match every character, so the matches tile the text, and one of them ends at the cut. None
   looks back, so the matches in y are those of y alone. Only `\s+(?!\S)` looks ahead, by one character, and a match
   that ends at the cut can be of that kind only if the cut follows a blank. After other characters, the matches in x
   are those of x alone: anything longer would cross the cut.
3. Merges do not leave a pre-token.

After blanks there are three more kinds of cuts, each with a proof of its own:

- Before the last blank of a run of two or more, if a non-blank follows the run. `\s+(?!\S)` takes the run except its
  last blank; if the text ends at the cut, it takes everything that is left, which is the same. This fails if the run is
  followed by an added token (then the run is the end of its piece and stays whole), or by a character that is split off
  before the regex runs (digits, where they are split first). So the context excludes the first characters of these.
- For Qwen's regex, the beginning of a line that is not empty. `\s*[\r\n]+` comes before `\s+(?!\S)`, takes the run of
  blanks up to its last line end, and does not look at what follows; punctuation takes line ends by `[\r\n]*`.
- Before each digit, if digits are split first.

Qwen's regex also adds one character that is neither letter, digit nor line end to the letters after it. Of two or more
punctuation marks in a row, however, the last one belongs to the others: ` ?[^\s\p{L}\p{N}]+` takes all of them from the
first on. That fails if a piece begins between them, so the first must not be the last character of an added token.

Characters outside of ASCII may be letters in one version of Unicode and unassigned in another. Contexts only require
them not to be blanks. U+180E, which was a blank once, and control characters are in no context at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

QWEN2_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The regex of Qwen2, Qwen2.5 and Qwen3. Llama 3's differs only in that it cuts digits by threes."""

LLAMA3_REGEX = QWEN2_REGEX.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_BLANKS = r"\t-\r "
_PUNCTUATION = r"!-/:-@\[-`{-~"
_OTHER = r"[^\x00-\x7f\x85\xa0\u1680\u180e\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""A character that is not ASCII, and not a blank in any version of Unicode."""

_LETTER = "[A-Za-z]"
_LETTERS = rf"[{_PUNCTUATION}\t ]?{_LETTER}+(?=[{_BLANKS}{_PUNCTUATION}0-9])"
_OTHERS = rf"[{_PUNCTUATION} ][{_PUNCTUATION}]*[\r\n]*|[\r\n]+|[\t ]+|[0-9]|{_OTHER}+[\r\n]*"
"""The most frequent parts of programs, so that cuts are not searched at each character. `_LETTERS` ends at one."""

_FIRST_WINDOW_CHARS = 64


class SafeCuts:
    """The safe cuts of one tokenizer. Only their contexts decide, so a search may start anywhere in a text."""

    def __init__(self, contexts: Iterable[str], pairs: Iterable[str]) -> None:
        """`contexts` are regexes of positions; `pairs` are neighbouring characters of added tokens, which stay
        together.
        """
        self._pairs = sorted(
            pair for pair in pairs if not re.fullmatch(_LETTER * 2, pair)
        )  # no context matches between letters
        cut = f"{self._assert_no_pair()}(?:{'|'.join(contexts)})"
        self._cut = re.compile(cut)
        self._word = re.compile(rf"{_LETTERS}{self._assert_no_pair(_LETTER)}|(?:{_OTHERS}){cut}|(?s:.+?)(?:{cut}|\Z)")

    def find_last_before(self, data: bytes, end: int) -> int:
        """Return the last cut with its context in `data[:end]`, which is valid UTF-8; 0 if there is none."""
        size = _FIRST_WINDOW_CHARS
        while True:
            begin = _find_character_start(data, max(0, end - size))
            text = data[begin:end].decode()
            for place in range(len(text) - 1, 0, -1):
                if self._cut.match(text, place):
                    return begin + len(text[:place].encode())
            if begin == 0:
                return 0
            size *= 4

    def find_first_after(self, data: bytes, begin: int) -> int:
        """Return the first cut with its context in `data[begin:]`, which is valid UTF-8; the length if there is
        none.
        """
        size = _FIRST_WINDOW_CHARS
        while True:
            end = _find_character_start(data, min(len(data), begin + size))
            text = data[begin:end].decode()
            found = self._cut.search(text, 1)
            if found:
                return begin + len(text[: found.start()].encode())
            if end == len(data):
                return end
            size *= 4

    def split_words(self, text: str) -> list[str]:
        """Split a text at safe cuts into short pieces; not every cut is used."""
        return self._word.findall(text)

    def split_pieces(self, text: str, num_chars: int) -> Iterator[str]:
        """Yield a text in pieces that end at the first safe cut after `num_chars` characters."""
        begin = 0
        while begin < len(text):
            found = self._cut.search(text, begin + num_chars)
            end = found.start() if found else len(text)
            yield text[begin:end]
            begin = end

    def _assert_no_pair(self, before: str = "") -> str:
        """Return a regex assertion that the characters around a position are no pair with `before` as the first."""
        pairs = [pair for pair in self._pairs if re.match(before, pair)]
        behind = "".join(sorted({re.escape(pair[1]) for pair in pairs}))
        return rf"(?![{behind}](?<={'|'.join(map(re.escape, pairs))}))" if pairs else ""


def make_safe_cuts(pre_tokenizer: object, added_tokens: Iterable[str]) -> SafeCuts | None:
    """Return the safe cuts of a pre-tokenizer as described in `tokenizer.json`; None for an unknown one.

    `added_tokens` are all added tokens, control tokens included; none of them requires blanks or word borders around
    it.
    """
    contexts = _select_contexts(pre_tokenizer)
    if contexts is None:
        return None
    tokens = sorted(set(added_tokens))
    first, last = ({token[place] for token in tokens} for place in (0, -1))
    pairs = {token[place : place + 2] for token in tokens for place in range(len(token) - 1)}
    contexts = [text.replace("NOT_FIRST", _exclude(first)).replace("NOT_LAST", _exclude(last)) for text in contexts]
    return SafeCuts(contexts, pairs)


def _exclude(characters: set[str]) -> str:
    return f"(?![{''.join(re.escape(character) for character in sorted(characters))}])" if characters else ""


def _select_contexts(pre_tokenizer: object) -> list[str] | None:
    """Return regexes of positions by kind of pre-tokenizer; the module's docstring says why each of them is safe."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return [*_COMMON, *_GPT2]
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        }:
            return [*_COMMON, *_GPT2, *_SINGLE_DIGITS, *_DIGITS_FIRST]
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return {QWEN2_REGEX: [*_COMMON, *_QWEN, *_SINGLE_DIGITS], LLAMA3_REGEX: [*_COMMON, *_QWEN]}.get(regex)
    return None


_COMMON = [
    rf"(?<=[A-Za-z])(?=[{_BLANKS}{_PUNCTUATION}0-9])",
    rf"(?<=[0-9])(?=[{_BLANKS}{_PUNCTUATION}A-Za-z])",
    rf"(?<=[{_PUNCTUATION}])(?=[\t\v\f 0-9])",  # Qwen's regex adds line ends to punctuation
    rf"(?<={_OTHER})(?=[\t\v\f ])",
]
_GPT2 = [
    rf"(?<=[{_PUNCTUATION}])(?=[\r\n])",
    rf"(?<={_OTHER})(?=[\r\n])",
    rf"(?<=[{_PUNCTUATION}])(?<!')(?=[A-Za-z])",  # 's and the like are one pre-token
    rf"(?<=[{_BLANKS}])(?=[{_BLANKS}]NOT_FIRST[{_PUNCTUATION}A-Za-z])",
]
_QWEN = [
    rf"(?<=[\r\n])(?=[\t ]*(?:[!-~]|{_OTHER}))",
    rf"(?<=[\t ])(?=[\t ]NOT_FIRST(?:[!-~]|{_OTHER}))",
    rf"(?<=NOT_LAST[{_PUNCTUATION}][{_PUNCTUATION}])(?=[A-Za-z])",
]
_SINGLE_DIGITS = [r"(?<=[0-9])(?=[0-9])"]
_DIGITS_FIRST = [rf"(?<=[{_BLANKS}])(?=[0-9])"]


def _find_character_start(data: bytes, offset: int) -> int:
    while 0 < offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset
