"""Recorded edits as token ids: what a model is asked, what it is to write, and who drafts that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import Case, load
from benchmarks.forwards.cases import Answers, ForwardsCase, answers, case_of, made_cases
from benchmarks.gpu.pieces import TextTokens
from benchmarks.gpu.script import Unforked
from benchmarks.snippets import Pair
from engine.speculation import MergeDraft

OWN_EDITS = Path(__file__).resolve().parents[2] / "tests" / "editor" / "lazy_cases"
"""Small files with an edit each, which are there with every checkout."""

BETWEEN = "~~~~\n"
"""What stands there between a file, its edit and the file after it."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit. `prompt` are file and edit; `output` is what was recorded of it, the text after the edit."""

    name: str
    group: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    case: ForwardsCase

    def draft(self, tokens: TextTokens) -> Unforked:
        """A new copy of what drafts an apply: the editor's merges, the file, the edit."""
        case = self.case
        merge_draft = MergeDraft(
            merges=case.merges, original=case.original, update=case.update, token_bytes=tokens.token_bytes()
        )
        return Unforked(merge_draft)


def edits(path: Path, tokens: TextTokens, *, limit: int, seed: int) -> list[Edit]:
    """Edits of the cases at or below `path`: what services answered, and real texts with made snippets, longest first.

    A third of `limit` are answers, where there are so many.
    """
    answer = answers(tokens.encode)
    if path == OWN_EDITS:
        return sorted(map(_edit, _own(tokens, answer)), key=lambda each: -len(each.output))[:limit]
    answered = sorted(_answered(path, tokens, answer), key=lambda each: -len(each.target))[: limit // 3]
    made = made_cases(path, tokens.encode, limit=limit - len(answered), seed=seed)
    return sorted(map(_edit, [*answered, *made]), key=lambda each: -len(each.output))


def _answered(path: Path, tokens: TextTokens, answer: Answers) -> Iterator[ForwardsCase]:
    for case in load(path).cases:
        if isinstance(case, Case) and case.shape == "lazy_service" and case.original != case.expected:
            pair = Pair(case.id, case.path, case.original, case.expected)
            yield case_of(pair, "recorded", case.edit, tokens.encode, answer)


def _own(tokens: TextTokens, answer: Answers) -> Iterator[ForwardsCase]:
    for file in sorted(OWN_EDITS.glob("*.txt")):
        before, snippet, after = file.read_text(encoding="utf-8").split(BETWEEN)
        pair = Pair(file.stem, file.stem, before, after)
        yield case_of(pair, "recorded", snippet, tokens.encode, answer)


def _edit(case: ForwardsCase) -> Edit:
    return Edit(f"{case.id} {case.style}", case.group, (*case.original, *case.update), case.target, case)
