"""Lazy edits of real files as token ids, with the merges that the editor's rules make of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from benchmarks.edit_formats import diff_texts
from benchmarks.snippets import STYLES, Pair, make_snippet, read_pairs
from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.types import AlreadyApplied, Merged

MIN_LINES = 80
ANSWER_END = "\n</updated-code>"
"""What the answer to the service's prompt ends with, the last thing that is drafted."""

Group = Literal["merge right", "merge wrong", "no merge"]
Encode = Callable[[str], list[int]]
Answers = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ForwardsCase:
    """One edit: the texts as token ids; `target` is what a model writes that makes no mistake.

    `merged` are the editor's merges, best first, none where it has none, and `merges` their ids; `group` says whether
    the first one is the target.
    """

    id: str
    style: str
    group: Group
    num_hunks: int
    before: str
    after: str
    snippet: str
    merged: tuple[str, ...]
    merges: tuple[tuple[int, ...], ...]
    original: tuple[int, ...]
    update: tuple[int, ...]
    target: tuple[int, ...]


def make_cases(path: Path, encode: Encode, *, limit: int | None, seed: int) -> list[ForwardsCase]:
    """Every real pair of at least MIN_LINES lines in every style that can say it; a sample of them with `limit`."""
    drawn = [(pair, style) for pair in read_pairs(path, MIN_LINES) for style in STYLES]
    if limit is not None:
        random.Random(seed).shuffle(drawn)
    answer = make_encoder(encode)
    found: list[ForwardsCase] = []
    for pair, style in drawn:
        if limit is not None and len(found) == limit:
            break
        snippet = make_snippet(pair.before, pair.after, pair.path, style, seed)
        if snippet is not None:
            found.append(make_case(pair, style, snippet, encode, answer))
            print(f"\r{len(found)} cases", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def make_encoder(encode: Encode) -> Answers:
    """Makes ids of whole texts as a model is to write them, of each once."""
    return cache(lambda text: tuple(encode(text.removesuffix("\n") + ANSWER_END)))


def make_case(pair: Pair, style: str, snippet: str, encode: Encode, answer: Answers) -> ForwardsCase:
    """Return one edit, said by a snippet in a style, and what the editor makes of it."""
    merged = list(_list_merges(pair, snippet))
    right = bool(merged) and merged[0] == pair.after
    return ForwardsCase(
        id=pair.id,
        style=style,
        group="merge right" if right else "merge wrong" if merged else "no merge",
        num_hunks=len(diff_texts(pair.before.split("\n"), pair.after.split("\n"))),
        before=pair.before,
        after=pair.after,
        snippet=snippet,
        merged=tuple(merged),
        merges=tuple(answer(text) for text in merged),
        original=answer(pair.before),
        update=tuple(encode(snippet.strip("\n"))),
        target=answer(pair.after),
    )


def _list_merges(pair: Pair, snippet: str) -> Iterator[str]:
    """Yield what the editor's rules make of a snippet: one merge, its candidates, or nothing."""
    try:
        outcome = merge(pair.before, parse(snippet, "lazy"), find_language(pair.path))
    except EditSyntaxError:
        return
    if isinstance(outcome, Merged):
        yield outcome.text
    elif isinstance(outcome, AlreadyApplied):
        yield pair.before
    else:
        yield from (candidate.text for candidate in outcome.candidates)


def count_files(cases: Sequence[ForwardsCase]) -> int:
    """Return how many different texts the cases are edits of; recorded sessions edit the same file again and again."""
    return len({case.before for case in cases})
