"""The tasks on which prompt forms are compared: what the model is given of a file, and which half an edit is in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.prompts.__main__ import chosen
from benchmarks.prompts.tasks import MAX_LINES, Task, tasks
from editor.scope import cut, splice

FUNCTIONS = [f"def f{n}(x):\n" + "".join(f"    y{line} = x + {n * line}\n" for line in range(14)) for n in range(20)]
LONG = "\n\n".join(FUNCTIONS)


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """One edit of a file of 340 lines, in twelve files of other names."""
    old, new = "    y7 = x + 70\n", "    y7 = x - 70\n"
    rows = [
        {
            "path": f"p{number}.py",
            "old_text": old,
            "new_text": new,
            "original": text,
            "expected": text.replace(old, new),
        }
        for number in range(12)
        for text in [f"# {number}\n\n\n{LONG}"]
    ]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_small_task_is_the_definition_that_is_edited(cases: Path) -> None:
    found = tasks(cases, ["small"], 0)
    assert len(found) == 12
    assert len({task.style for task in found}) > 3, "styles go round"
    for task in found:
        assert task.file.startswith("def f10(x):")
        assert task.file.count("\n") <= MAX_LINES
        assert task.right == task.file.replace("x + 70", "x - 70")
        assert task.edit.strip() != task.right.strip() or task.style == "whole_definition"


def test_a_regions_right_answer_makes_the_right_file(cases: Path) -> None:
    found = tasks(cases, ["region"], 0)
    assert found
    for task in found:
        assert task.region is not None
        assert task.region.num_lines < task.file.count("\n") / 2
        assert "def f3" in task.outline or "def f11" in task.outline
        assert splice(task.file, [task.region], cut(task.file, task.right, [task.region])) == task.right


def test_the_halves_are_all_and_share_no_file(cases: Path) -> None:
    found = tasks(cases, ["small", "region"], 0)
    choose, held_out = (chosen(found, half, None) for half in ("choose", "held-out"))
    assert len(choose) + len(held_out) == len(found)
    assert choose
    assert held_out
    assert {task.path for task in choose}.isdisjoint(task.path for task in held_out)
    assert chosen(found, "both", None) == found


def test_a_limit_is_of_each_kind(cases: Path) -> None:
    found = chosen(tasks(cases, ["small", "region"], 0), "both", 2)
    assert sorted(task.kind for task in found) == ["region", "region", "small", "small"]


def test_tasks_of_one_file_are_in_one_half() -> None:
    one, two = (Task(name, "small", "markers", "a/b.py", "", "", "") for name in ("first", "second"))
    assert one.held_out == two.held_out
