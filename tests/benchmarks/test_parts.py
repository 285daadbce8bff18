"""The fixed test part: what is in it, and that no file has edits in both parts."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.cases import DEFAULT_CASES, Record, find_part, read_records


def _read(name: str) -> list[Record]:
    path = DEFAULT_CASES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return [record for _, found in read_records(path) for record in found]


def test_whole_repositories_are_in_the_test_part() -> None:
    assert find_part("microsoft/vscode-copilot-chat", "src/any.ts") == "test"
    assert find_part("gin-gonic/gin", "gin.go") == "test"
    assert find_part("JamesNK/Newtonsoft.Json", "Src/Any.cs") == "test"


def test_other_repositories_are_in_the_training_part() -> None:
    assert find_part("cline/cline", "src/any.ts") == "train"
    assert find_part("", "gin-gonic/gin") == "train"


def test_a_third_of_the_files_of_coeditor_is_in_the_test_part() -> None:
    paths = {record["path"] for record in _read("commits") if record["repo"] == "MrVPlusOne/Coeditor"}
    found = Counter(find_part("MrVPlusOne/Coeditor", path) for path in paths)
    assert found == {"train": 52, "test": 26}


def test_a_quarter_of_the_snippets_is_in_the_test_part_with_equal_shares_of_its_sets() -> None:
    found = [record for record in _read("snippets") if find_part(record["repo"], record["path"]) == "test"]
    assert len(found) == 150
    assert Counter(record["id"].split("-")[0] for record in found) == {"dev": 53, "dev2": 47, "dev3": 50}


def test_no_text_is_in_both_parts() -> None:
    """A file that moved would be under two paths."""
    parts: dict[str, set[str]] = {}
    for record in [*_read("commits"), *_read("snippets")]:
        for text in (record["original"], record["expected"]):
            parts.setdefault(text, set()).add(find_part(record["repo"], record["path"]))
    assert all(len(found) == 1 for found in parts.values())
