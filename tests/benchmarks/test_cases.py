"""Records to cases: every shape of ../shared/data told by its fields, nothing taken for a case that is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import DEFAULT_CASES, Case, PatchCase, find_shape, load_cases_at

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
