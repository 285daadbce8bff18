"""Text that is hard to tokenize, and edits of it, to compare incremental and batch encoding with plain encoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

TOKENIZERS = ["smollm2-135m", "qwen2.5-coder-0.5b"]
"""Models of the catalogue whose tokenizers are tested."""

PIECES = [
    *("\n", "\r\n", "\r", "\n\n", "\n\n\n", " ", "  ", "    ", "\t", " \t", "\v", "\f", "\x1c", "\x7f", "\x00"),
    *("\u00a0", "\u3000", "\u2028", "\u2009", "\x85", "\u180e", "\ufeff", "\u200b", "\u200d"),
    *("1", "12", "345", " 7", "0x1F", "3.14", "²", "Ⅷ", "٣", "𝟙", "½"),
    *("x", " foo", "self.", "bar_baz", "é", "ß", "ſ", "日本語", "漢", "한", "e\u0301", "\u0301", "İ"),
    *("'", "''", "'s", "don't", "I'LL ", "'ſ", "'r", "e "),
    *(".", ")", "()", ").", "():\n", " = ", "{}\n", "# ---\n", "->", "\\", "`", "_", "|", "<", ">"),
    *("<|im_end|>", "<|im_", "end|>", "<tool_call>", "</tool_call>", "<tool_", "call>", "<|fim_prefix|>", "<|", "|>"),
    *("👩‍👩‍👧‍👦", "👍🏽", "☃️", "🇩🇪"),
    *("def f(x):\n    return x\n", "\n    }", '{"a":1,"b":[2,3]}', "QUJDREVGRw9z+/==", "<<<<<<< SEARCH\n"),
]

texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=15).map("".join)


@dataclass(frozen=True)
class Edit:
    """Characters of a text, from a share of it on, that others take the place of."""

    place: float
    num_removed: int
    added: str

    def apply(self, text: str) -> str:
        """The text with the edit made."""
        start = round(self.place * len(text))
        return text[:start] + self.added + text[start + self.num_removed :]


EVERYTHING = 1 << 30
edits = st.builds(
    Edit,
    st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)),
    st.one_of(st.integers(0, 5), st.just(EVERYTHING)),
    st.one_of(st.just(""), st.sampled_from(PIECES), st.lists(st.sampled_from(PIECES), max_size=4).map("".join)),
)


def random_text(random: Random, num_pieces: int) -> str:
    """Pieces in a row."""
    return "".join(random.choices(PIECES, k=num_pieces))


def random_edit(random: Random) -> Edit:
    """An edit at either end or anywhere, that may remove everything."""
    place = random.choice([0.0, 1.0, *(random.random() for _ in range(6))])
    num_removed = EVERYTHING if random.random() < 0.01 else random.choice([0, 0, 1, 1, 2, 3, 8, 30])
    return Edit(place, num_removed, random_text(random, random.choice([0, 0, 1, 1, 2, 3, 8])))


def random_chain(random: Random, num_edits: int) -> Iterator[str]:
    """The versions of a text that is edited again and again, from the first one on."""
    text = random_text(random, random.choice([0, 3, 30, 200]))
    yield text
    for _ in range(num_edits):
        text = random_edit(random).apply(text)
        yield text
