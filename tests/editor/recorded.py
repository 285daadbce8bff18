"""The recorded edits of ../shared/data (beside the checkout) as (original, edit, expected), where they are at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


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


def search_replace(before: str, after: str) -> str:
    """Write one block, with markers longer than any such line in the text."""
    size = 7
    while any(line.startswith(("=" * size, "<" * size)) for line in f"{before}\n{after}".split("\n")):
        size += 1
    parts = ("<" * size + " SEARCH", before, "=" * size, after, ">" * size + " REPLACE")
    return "".join(part if not part or part.endswith("\n") else part + "\n" for part in parts)


def continue_cases() -> Iterator[Recorded]:
    for row in rows("continue_lazy_edit/cases.jsonl"):
        yield Recorded(row["id"], row["id"], row["original"], row["update"], row["expected"])


def morph_cases() -> Iterator[Recorded]:
    suffixes = {"S06": ".py", "S07": ".md", "S08": ".css", "S10": ".java"}
    for row in rows("morph_live_outputs/cases.jsonl"):
        path = "file" + suffixes.get(row["id"][-3:], ".ts")
        yield Recorded(row["id"], path, row["original"], row["update"], row["vendor_output"])


def aider_cases() -> Iterator[Recorded]:
    for row in rows("aider_chat_history/positive_cases.jsonl"):
        edit = "".join(search_replace(block["search"], block["replace"]) for block in row["blocks"])
        yield Recorded(row["id"], row["path"], row["original"], edit, row["expected"])


def aider_refused_cases() -> Iterator[Recorded]:
    for row in rows("aider_chat_history/negative_cases.jsonl"):
        edit = search_replace(row["search"], row["replace"])
        yield Recorded(row["id"], row["path"], row["original"], edit, None)


def session_cases() -> Iterator[Recorded]:
    """Only the edits of whole lines: a block cannot say that half a line is meant."""
    for row in rows("agent_sessions/edit_cases.jsonl"):
        before, after, text = row["old_text"], row["new_text"], row["original"]
        at = text.find(before)
        end = at + len(before)
        begins = at == 0 or text[at - 1] == "\n"
        ends = before.endswith("\n") or end == len(text) or text[end] == "\n"
        if begins and ends and after and before.endswith("\n") == after.endswith("\n"):
            yield Recorded(row["id"], row["path"], text, search_replace(before, after), row["expected"])
