"""Recorded edits as cases, the fixed test part, and edits by rule with what their answer is worth."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import DEFAULT_CASES, Case, PatchCase, Record, find_part, find_shape, load_cases_at, read_records
from benchmarks.edit_formats import render_blocks

SAMPLES: dict[str, dict[str, Any]] = {
    "aider": {
        "id": "a",
        "path": "a.py",
        "original": "x\n",
        "expected": "y\n",
        "blocks": [{"search": "x\n", "replace": "y\n"}],
    },
    "aider_refused": {
        "id": "n",
        "path": "a.py",
        "original": "x\n",
        "search": "z\n",
        "replace": "y\n",
        "error_shown_to_model": "",
    },
    "session": {"id": "s", "path": "a.ts", "original": "x\n", "expected": "y\n", "old_text": "x", "new_text": "y"},
    "session_refused": {"path": "a.ts", "original": "x\n", "old_text": "x", "new_text": "x", "error": "No changes"},
    "codex": {
        "id": "c",
        "input": {"a": "x\n"},
        "patch": "*** Begin Patch\n",
        "expected": {},
        "expects_rejection": True,
    },
    "lazy": {"id": "dir/x.js", "original": "x\n", "update": "y\n", "expected": "y\n"},
    "lazy_service": {"id": "m", "original": "x\n", "update": "y\n", "vendor_output": "y"},
    "unit_test": {
        "project": "roo",
        "test": "a > b",
        "original": "x\n",
        "expected": "y\n",
        "edit": "e",
        "should_apply": True,
    },
    "edit_eval": {"task_id": "E/1", "instruction": "", "input": "a\nb\nc\n", "output": "a\nb2\nc\n"},
}


def write(folder: Path, name: str, *records: dict[str, Any]) -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return file


@pytest.mark.parametrize("shape", SAMPLES)
def test_a_record_is_told_by_its_fields(shape: str, tmp_path: Path) -> None:
    assert find_shape(SAMPLES[shape]) == shape
    (case,) = load_cases_at(write(tmp_path, "x.jsonl", SAMPLES[shape])).cases
    assert case.shape == shape


def test_the_flag_overrules_the_fields(tmp_path: Path) -> None:
    record = SAMPLES["lazy"] | {"vendor_output": "z\n"}
    (case,) = load_cases_at(write(tmp_path, "x.jsonl", record), "lazy_service").cases
    assert isinstance(case, Case)
    assert case.expected == "z\n"
    assert case.inexact


def test_files_without_cases_are_skipped_and_named_and_gzip_is_read(tmp_path: Path) -> None:
    write(tmp_path, "other.jsonl", {"type": "message"}, {"type": "message"})
    (tmp_path / "README.md").write_text("no case", "utf-8")
    data = json.dumps(SAMPLES["aider"]).encode()
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(data))
    loaded = load_cases_at(tmp_path)
    assert [case.id for case in loaded.cases] == ["a"]
    assert [Path(file).name for file in loaded.skipped_files] == ["README.md", "other.jsonl"]


def test_a_refusal_on_a_guessed_state_is_not_usable(tmp_path: Path) -> None:
    once = SAMPLES["session_refused"] | {"new_text": "y"}
    twice = once | {"original": "x x\n"}
    loaded = load_cases_at(write(tmp_path, "failed.jsonl", once, twice, SAMPLES["session_refused"]))
    assert len(loaded.unusable) == 1
    assert "only guessed" in loaded.unusable[0]
    assert [case.expects for case in loaded.cases if isinstance(case, Case)] == ["refusal", "nothing_to_do"]


def test_half_a_line_cannot_be_a_block(tmp_path: Path) -> None:
    half = SAMPLES["session"] | {"original": "x = 1\n", "expected": "y = 1\n"}
    whole, part = load_cases_at(write(tmp_path, "x.jsonl", SAMPLES["session"], half)).cases
    assert isinstance(whole, Case)
    assert isinstance(part, Case)
    assert "SEARCH" in whole.also["search_replace"]
    assert not part.also


def test_spaces_from_nowhere_make_an_expected_text_inexact(tmp_path: Path) -> None:
    stray = SAMPLES["lazy"] | {"expected": "y\n \nz\n"}
    own = stray | {"original": "x\n \n"}
    first, second = load_cases_at(write(tmp_path, "x.jsonl", stray, own)).cases
    assert isinstance(first, Case)
    assert isinstance(second, Case)
    assert (first.inexact, second.inexact) == (True, False)


def test_the_recorded_data_is_read_whole() -> None:
    if not DEFAULT_CASES.exists():
        pytest.skip(f"recorded edits are not at hand: {DEFAULT_CASES}")
    loaded = load_cases_at(DEFAULT_CASES)
    shapes = {case.shape for case in loaded.cases}
    assert shapes == set(SAMPLES)
    assert any(isinstance(case, PatchCase) for case in loaded.cases)
    assert any(name.endswith(".traj.gz") for name in loaded.skipped_files)


def test_a_record_with_holes_and_a_file_that_is_no_json_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"id": "a", "original": "x\n", "update": "y\n", "expected": "y\n"}
    records = [whole, {**whole, "id": "b", "expected": None}]
    (tmp_path / "lazy.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    (tmp_path / "broken.jsonl").write_text("no json\n")
    loaded = load_cases_at(tmp_path)
    assert [case.id for case in loaded.cases] == ["a"]
    assert len(loaded.unusable) == 1
    assert loaded.unusable[0].startswith("b: not a case of shape lazy")
    assert loaded.skipped_files == (str(tmp_path / "broken.jsonl"),)
    assert "broken.jsonl cannot be read" in capsys.readouterr().err


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


def case(search: str, replace: str, original: str, expected: str, path: str = "x.txt", **more: Any) -> Case:
    """One SEARCH/REPLACE block as a case."""
    edit = render_blocks([(search, replace)])
    return Case("x", "aider", "search_replace", path, original, edit, expected, **more)


_DONE = "a\nnew line here\nb\n"
ANSWERS = [
    (case("b\n", "c\n", "a\nb\n", "a\nc\n"), "exact", False),
    (case("b\n", "c\n", "a\nb\n", "a\nd\n"), "wrong", True),
    (case("b\n", "c\n", "a\nb\n", "a\nc", inexact=True), "exact", False),
    (case("first line\n", "c\n", "first line\nfirst line\n", "c\nfirst line\n"), "first_candidate", False),
    (case("first line\n", "c\n", "first line\nfirst line\n", "first line\nc\n"), "any_candidate", False),
    (case("zzz\n", "c\n", "a\nb\n", "a\nc\n"), "refused", False),
    (case("zzz\n", "c\n", "a\nb\n", "a\nb\n", expects="refusal"), "refused", False),
    (case("b\n", "c\n", "a\nb\n", "a\nb\n", expects="refusal"), "wrong", True),
    (case("b\n", "b\n", "a\nb\n", "a\nb\n", expects="nothing_to_do"), "refused", False),
    (case("b\n", "c\n", "a\r\nb\r\n", "a\r\nc\r\n"), "exact", False),
    (case("old line here\n", "new line here\n", _DONE, _DONE), "exact", False),
    (case("old line here\n", "new line here\n", _DONE, "a\nb\n"), "wrong", True),
    (case("old line here\n", "new line here\n", _DONE, _DONE, expects="refusal"), "wrong", True),
    (case("old line here\n", "new line here\n", _DONE, _DONE, expects="nothing_to_do"), "refused", False),
]
"""(case, outcome, whether it is wrong and claimed certain)"""
