"""The example agent mends the sample repository with the right answer, goes on after wrong ones, and gives up."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agent_runtime import LocalClient
from agent_runtime.types import Usage

FOLDER = Path(__file__).parents[1] / "examples"
RIGHT = "```python\ndef average(marks):\n    return sum(marks) / len(marks) if marks else 0\n```"
WRONG = RIGHT.replace("else 0", "else 1")
SAME = """
def best(marks):
    \"\"\"The highest mark; 0 where there are none yet.\"\"\"
    return max(marks, default=0)
"""
USAGE = Usage(prompt=100, cached=60, recomputed=40, completion=7, forwards=3)


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent_loop", FOLDER / "agent_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent_loop"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER / "sample_repo", tmp_path / "repo")


def mended(agent: ModuleType, root: Path, answers: list[str], num_turns: int = 4) -> tuple[int, list[str]]:
    """How the loop ended over these answers, and what was asked."""
    asked: list[str] = []

    def ask(question: str, turn: int) -> tuple[str, Usage]:
        asked.append(question)
        return answers[turn - 1], USAGE

    with LocalClient(root, model=None, watch=False) as client, client.session() as session:
        return agent.mend(root, session, ask, num_turns), asked


def test_exactly_one_test_of_the_sample_fails_and_the_agent_sees_which(agent: ModuleType, root: Path) -> None:
    failure = agent.failing_test(root)
    assert failure.startswith("ERROR: test_the_average_of_no_marks")
    assert failure.endswith("ZeroDivisionError: division by zero")
    assert agent.suspect_of(failure) == "The function average of marks.py raised this."


def test_the_right_function_takes_its_place_and_nothing_else_changes(
    agent: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (root / "marks.py").read_text()
    status, asked = mended(agent, root, [RIGHT])
    assert status == 0
    assert len(asked) == 1
    head, _, tail = before.partition("def average")
    after = (root / "marks.py").read_text()
    assert after.startswith(head)
    assert after.endswith(tail.partition("def best")[2])
    printed = capsys.readouterr().out
    assert "all tests pass" in printed
    assert "100 tokens of prompt: 60 reused exactly, 0 approximately, 40 computed; 7 written in 3 passes" in printed


def test_a_wrong_answer_is_said_to_be_one_and_the_next_is_tried(agent: ModuleType, root: Path) -> None:
    status, asked = mended(agent, root, [WRONG, "I do not know.", SAME, RIGHT])
    assert status == 0
    assert "That was not it" not in asked[0]
    assert "average in marks.py was replaced" in asked[1]
    assert "AssertionError: 1 != 0" in asked[1]
    assert "no function in the answer" in asked[2]
    assert "best in marks.py stayed as it was" in asked[3]


def test_it_gives_up_after_so_many_turns(agent: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, asked = mended(agent, root, [WRONG, WRONG], 2)
    assert (status, len(asked)) == (1, 2)
    assert "gave up after 2 turns" in capsys.readouterr().out
