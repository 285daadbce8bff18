"""The recorded edits of ../shared/data (beside the checkout) as (original, edit, expected), where they are at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from benchmarks.cases import DEFAULT_CASES, AnyCase, Case, PatchCase, load_cases_at
from benchmarks.edit_formats import render_blocks

DATA = DEFAULT_CASES


@dataclass(frozen=True, slots=True)
class Recorded:
    """One case; `expected` is None for an edit that must not be merged."""

    name: str
    path: str
    original: str
    edit: str
    expected: str | None


def rows(name: str) -> list[dict[str, Any]]:
    """Return the records of one data set, or skip the test that asks."""
    file = DATA / name
    if not file.exists():
        pytest.skip(f"recorded edits are not at hand: {file}")
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]


def cases(folder: str) -> tuple[AnyCase, ...]:
    """Return the cases of one data set as the benchmark reads them, or skip the test that asks."""
    if not (DATA / folder).exists():
        pytest.skip(f"recorded edits are not at hand: {DATA / folder}")
    return _load(folder)


def search_replace(before: str, after: str) -> str:
    """Write one block, with markers longer than any such line in the text."""
    return render_blocks([(before, after)])


def continue_cases() -> Iterator[Recorded]:
    return _recorded("continue_lazy_edit", "lazy")


def morph_cases() -> Iterator[Recorded]:
    return _recorded("morph_live_outputs", "lazy_service")


def aider_cases() -> Iterator[Recorded]:
    return _recorded("aider_chat_history", "aider")


def aider_refused_cases() -> Iterator[Recorded]:
    return _recorded("aider_chat_history", "aider_refused")


def session_cases() -> Iterator[Recorded]:
    """Only the edits of whole lines: a block cannot say that half a line is meant."""
    for case in cases("agent_sessions"):
        if isinstance(case, Case) and case.shape == "session" and "search_replace" in case.also:
            yield Recorded(case.id, case.path, case.original, case.also["search_replace"], case.expected)


def replacement_cases() -> Iterator[Recorded]:
    """All edits of the agent sessions, as the tool calls that they were."""
    return _recorded("agent_sessions", "session")


def patch_cases() -> Iterator[PatchCase]:
    return (case for case in cases("codex_apply_patch") if isinstance(case, PatchCase))


@cache
def _load(folder: str) -> tuple[AnyCase, ...]:
    return load_cases_at(DATA / folder).cases


def _recorded(folder: str, shape: str) -> Iterator[Recorded]:
    for case in cases(folder):
        if isinstance(case, Case) and case.shape == shape:
            expected = case.expected if case.expects == "text" else None
            yield Recorded(case.id, case.path, case.original, case.edit, expected)
