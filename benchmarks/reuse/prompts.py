"""A turn's prompt as segments: each message is one, in ChatML; files that were read are cut at their definitions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath

from benchmarks.reuse.sessions import Message
from editor.grammars import find_language
from editor.syntax import survey
from engine.reuse import PromptSegment
from repo_cache.tokenizer import BPETokenizer

FEWEST_LINES = 4
"""A shorter definition stands in one segment with what precedes it."""

_NUMBERED = re.compile(r"\d+:")


@dataclass(frozen=True)
class Prompts:
    """Makes prompts of messages with one model's tokenizer. What a message becomes is remembered.

    Each segment is tokenised by itself, so that its ids do not depend on its neighbours. A result of a tool is a user's
    message between <tool_response> tags, as Qwen's chat template writes it.
    """

    tokenizer: BPETokenizer
    _made: dict[Message, tuple[PromptSegment, ...]] = field(default_factory=dict)

    def of(self, messages: Sequence[Message]) -> list[PromptSegment]:
        """The prompt of a turn, ready for the assistant's answer."""
        segments = [segment for message in messages for segment in self.message(message)]
        return [*segments, PromptSegment(self.tokenizer.encode_template("<|im_start|>assistant\n"))]

    def message(self, message: Message) -> tuple[PromptSegment, ...]:
        """The segments of one message."""
        if message not in self._made:
            self._made[message] = tuple(self._segments(message))
        return self._made[message]

    def size(self, message: Message) -> int:
        """Tokens of one message."""
        return sum(len(segment.token_ids) for segment in self.message(message))

    def answer(self, message: Message) -> list[int]:
        """The ids that the model wrote, but for the one that ended its turn."""
        return self.tokenizer.encode(message.text)

    def _segments(self, message: Message) -> Iterator[PromptSegment]:
        is_result = message.role == "tool"
        opening = f"<|im_start|>{'user' if is_result else message.role}\n" + ("<tool_response>\n" if is_result else "")
        closing = ("\n</tool_response>" if is_result else "") + "<|im_end|>\n"
        pieces = [self.tokenizer.encode(piece) for piece in cut(message.text, message.path)] or [[]]
        pieces[0] = [*self.tokenizer.encode_template(opening), *pieces[0]]
        pieces[-1] = [*pieces[-1], *self.tokenizer.encode_template(closing)]
        for ids in pieces:
            yield PromptSegment(ids)


def cut(text: str, path: str) -> list[str]:
    """The text of a file in pieces that begin at its definitions; one piece where `path` names no known language.

    Lines may be numbered ("12:code"), as SWE-agent shows them, with other lines above and below.
    """
    lines = text.split("\n")
    language = find_language(PurePath(path).name) if path else None
    if language is None:
        return [text] if text else []
    if sum(bool(_NUMBERED.match(line)) for line in lines) > len(lines) / 2:
        code = [line[number.end() :] if (number := _NUMBERED.match(line)) else "" for line in lines]
    else:
        code = lines
    found = survey("\n".join(line.removesuffix("\r") for line in code), language)
    starts = [0]
    for symbol in sorted(found.symbols if found else (), key=lambda each: each.doc_line):
        is_long = symbol.end_line - symbol.doc_line >= FEWEST_LINES
        if is_long and symbol.doc_line > starts[-1]:
            starts.append(symbol.doc_line)
    # A piece ends with a newline: what follows it is tokenised by itself.
    with_ends = [line + "\n" for line in lines[:-1]] + [lines[-1]]
    pieces = ["".join(with_ends[first:end]) for first, end in pairwise([*starts, len(lines)])]
    return [piece for piece in pieces if piece]
