"""Recorded edits as token ids; without a tokenizer, a rule splits the texts into about as many pieces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import open_tokenizer
from benchmarks.cases import Case, load_cases_at
from benchmarks.forwards import Answers, ForwardsCase, make_case, make_cases, make_encoder
from benchmarks.snippets import Pair
from engine.speculation import MergeDraft

TOKENIZER = "qwen2.5-coder-0.5b"
"""All Qwen2.5 models have the same."""

PIECES = re.compile(rb"\s*\n|[^\S\n]+(?=[^\S\n])|[^\S\n]?\w{1,7}|[^\S\n]?[^\w\s]{1,3}|[^\S\n]")
"""Line ends, indentation, and words and signs with the blank before them, as byte-level BPE splits a text first; long
words are cut."""


class TextTokens(Protocol):
    """Encodes edits."""

    def encode(self, text: str) -> list[int]: ...

    def token_bytes(self) -> Sequence[bytes]:
        """Return what each token id stands for."""
        ...


class Pieces:
    """A tokenizer that gives each new piece of text the next id."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}

    def encode(self, text: str) -> list[int]:
        """Return the text's pieces; joined, they are the text."""
        data = text.encode()
        found = PIECES.findall(data)
        assert b"".join(found) == data, "pieces have lost a part of the text"
        return [self._ids.setdefault(piece, len(self._ids)) for piece in found]

    def token_bytes(self) -> list[bytes]:
        return list(self._ids)


def open_tokens() -> tuple[TextTokens, str]:
    """Return the models' tokenizer, or `Pieces` if it was not downloaded, and a description."""
    try:
        tokenizer = open_tokenizer(TOKENIZER, ModelSettings.from_env(os.environ))
        return tokenizer, f"tokenizer of {TOKENIZER}"
    except HunkError:
        return Pieces(), f"no tokenizer at hand ({TOKENIZER} was not downloaded): texts are cut by a rule"


OWN_EDITS = Path(__file__).resolve().parents[2] / "tests" / "editor" / "lazy_cases"
"""Small files with an edit each, part of every checkout."""

BETWEEN = "~~~~\n"
"""Separates a file, its edit and the file after the edit."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit. `prompt` is the file and the edit, `output` the recorded text after the edit."""

    name: str
    group: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    case: ForwardsCase

    def draft(self, tokens: TextTokens) -> MergeDraft:
        """Return a new draft as in an apply: the editor's merges, the file, the edit."""
        case = self.case
        return MergeDraft(
            merges=case.merges, original=case.original, update=case.update, token_bytes=tokens.token_bytes()
        )


def load_edits(path: Path, tokens: TextTokens, *, limit: int, seed: int) -> list[Edit]:
    """Return edits of the cases at or below `path`: recorded answers, and real texts with made snippets, longest first.

    At most a third of `limit` are recorded answers.
    """
    answer = make_encoder(tokens.encode)
    if path == OWN_EDITS:
        return sorted(map(_make_edit, _read_own(tokens, answer)), key=lambda each: -len(each.output))[:limit]
    answered = sorted(_read_answered(path, tokens, answer), key=lambda each: -len(each.target))[: limit // 3]
    made = make_cases(path, tokens.encode, limit=limit - len(answered), seed=seed)
    return sorted(map(_make_edit, [*answered, *made]), key=lambda each: -len(each.output))


def _read_answered(path: Path, tokens: TextTokens, answer: Answers) -> Iterator[ForwardsCase]:
    for case in load_cases_at(path).cases:
        if isinstance(case, Case) and case.shape == "lazy_service" and case.original != case.expected:
            pair = Pair(case.id, case.path, case.original, case.expected)
            yield make_case(pair, "recorded", case.edit, tokens.encode, answer)


def _read_own(tokens: TextTokens, answer: Answers) -> Iterator[ForwardsCase]:
    for file in sorted(OWN_EDITS.glob("*.txt")):
        before, snippet, after = file.read_text(encoding="utf-8").split(BETWEEN)
        pair = Pair(file.stem, file.stem, before, after)
        yield make_case(pair, "recorded", snippet, tokens.encode, answer)


def _make_edit(case: ForwardsCase) -> Edit:
    return Edit(f"{case.id} {case.style}", case.group, (*case.original, *case.update), case.target, case)
