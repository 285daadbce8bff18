"""A probe as token ids: the prompts of its two turns, and where in them segments and definitions end."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agent_runtime.models.tokenizer import TokenizerBundle
from benchmarks.reuse.quality.probe import Probe
from repo_cache.chunks import cut
from repo_cache.incremental import EncodedText, encoded

FIRST_QUESTION = "Does this file look complete? Answer in one word."
"""What the turn before the edit asks: the file is stored by then, and nothing is known of the question to come."""

MOST_COPIED = 1_000
"""Characters of the file that an answer is expected to copy at most."""

_SLOT = "\ue0f0"


@dataclass(frozen=True)
class LaidOutProbe:
    """A probe for one model. A prompt is `head`, the file, and a tail, in which the question stands."""

    probe: Probe
    head: tuple[int, ...]
    before: EncodedText
    after: EncodedText
    first_tail: tuple[int, ...]
    tail: tuple[int, ...]
    spans: tuple[int, ...]
    """Where the spans of the new file end, in tokens of the new prompt."""
    copied: tuple[int, ...] = ()
    """What the file has behind the beginning of the answer: a good model's answer to a probe that the edit leaves
    alone, to draft with. Empty where the answer is no copy."""

    @property
    def first_prompt(self) -> list[int]:
        """The turn before the edit."""
        return [*self.head, *self.before.token_ids.tolist(), *self.first_tail]

    @property
    def stale_prompt(self) -> list[int]:
        """The turn behind the edit, had there been none."""
        return [*self.head, *self.before.token_ids.tolist(), *self.tail]

    @property
    def prompt(self) -> list[int]:
        """The turn behind the edit."""
        return [*self.head, *self.after.token_ids.tolist(), *self.tail]

    @cached_property
    def segment_ends(self) -> tuple[int, ...]:
        """Where the new prompt's segments end: its head, the file's spans; the tail is one more."""
        return len(self.head), *self.spans

    @property
    def tail_start(self) -> int:
        """Where the file ends in the new prompt."""
        return len(self.head) + len(self.after.token_ids)

    @cached_property
    def changed(self) -> tuple[int, int]:
        """The tokens of the new prompt that the edit put there; empty behind a deletion."""
        old, new = self.before.token_ids, self.after.token_ids
        shorter = min(len(old), len(new))
        leading = _num_equal(old[:shorter], new[:shorter])
        trailing = _num_equal(old[len(old) - shorter + leading :][::-1], new[len(new) - shorter + leading :][::-1])
        return len(self.head) + leading, len(self.head) + len(new) - trailing

    def tokens(self, start: int, end: int) -> tuple[int, int]:
        """The tokens of the new prompt that hold the characters [start, end) of the new file."""
        ends = self.after.token_ends
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, end, side="left")) + 1
        return len(self.head) + first, len(self.head) + min(last, len(ends))

    @cached_property
    def definitions(self) -> list[tuple[int, int]]:
        """The new file's functions, methods and classes, outer ones first, in tokens of the new prompt."""
        text = self.probe.after
        line_ends = [0, *(at + 1 for at, character in enumerate(text) if character == "\n")]
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return [
            self.tokens(line_ends[node.lineno - 1], line_ends[node.end_lineno or node.lineno])
            for node in ast.walk(ast.parse(text))
            if isinstance(node, kinds)
        ]


def lay_out(probe: Probe, text: TokenizerBundle) -> LaidOutProbe:
    """The probe as one model reads it."""
    tokenizer = text.tokenizer
    head, tail = text.template.render([{"role": "user", "content": _SLOT}]).split(_SLOT)
    opening = tokenizer.encode_template(f"{head}This is the file `{probe.file_name}`:\n\n```python\n")
    before, after = (encoded(tokenizer, each.encode()) for each in (probe.before, probe.after))
    spans = cut(after, "python", tokenizer.fingerprint).spans.ends

    def question(asked: str, begun: str) -> tuple[int, ...]:
        ids = tokenizer.encode(f"```\n\n{asked}") + tokenizer.encode_template(tail)
        return tuple(ids + (tokenizer.encode(begun) if begun else []))

    return LaidOutProbe(
        probe,
        tuple(opening),
        before,
        after,
        question(FIRST_QUESTION, ""),
        question(probe.question, probe.begun),
        tuple(len(opening) + end for end in spans.tolist()),
        tuple(tokenizer.encode(_rest(probe))) if probe.probe_class == "insensitive" else (),
    )


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same positions in ascending ranges that do not meet."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(each for each in ranges if each[0] < each[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def _rest(probe: Probe) -> str:
    """What the new file has behind the beginning of an answer that is a copy of some of it."""
    begun = probe.begun.removeprefix("```python\n")
    whole = probe.after.find(begun) + len(begun)
    return probe.after[whole : whole + MOST_COPIED]


def _num_equal(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> int:
    differs = first != second
    return int(differs.argmax()) if differs.any() else len(first)
