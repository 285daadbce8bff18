"""`python -m benchmarks.train_chooser`: what is shipped is what the shipped scores give, and scores are recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.scorer import load_chooser
from agent_runtime.types import ApplyRequest
from benchmarks.cases import Case, read_records
from benchmarks.snippets import make_imitations
from benchmarks.train_chooser.train import (
    HERE,
    WEIGHTS,
    ReadingScore,
    ScoredCase,
    answer,
    find_marginal_bar,
    fit,
    read_scores,
    score_case,
    write_changes,
)
from benchmarks.train_reader.order import Answer

OPTIONS = {"l2": 0.003, "made_weight": 1.0, "plot": None, "scores": sorted(HERE.glob("*.jsonl.gz"))}


def test_the_weights_are_those_that_the_shipped_scores_give(tmp_path: Path) -> None:
    out = tmp_path / "chooser.json"
    figures = fit(list(read_scores(OPTIONS["scores"])), SimpleNamespace(**OPTIONS, out=out))  # type: ignore[arg-type]
    found, shipped = json.loads(out.read_text()), json.loads(WEIGHTS.read_text())
    assert found["weights"] == pytest.approx(shipped["weights"], abs=1e-3)
    assert found["bar"] == pytest.approx(shipped["bar"], abs=1e-3)
    assert found["card"]["figures"] == shipped["card"]["figures"] == figures


def test_on_held_out_cases_a_choice_is_rarely_wrong() -> None:
    """At most one of 25 in any group of the training part: what the bar is for."""
    figures = json.loads(WEIGHTS.read_text())["card"]["figures"]
    for name, block in figures.items():
        if "train" in name:
            assert block["right"] > 20 * block["wrong"], name


def test_the_bar_is_where_ten_right_ones_cost_a_wrong_one() -> None:
    def answers(pattern: str) -> list[Answer]:
        return [Answer(1.0 - at / 100, one == "r", one == "r") for at, one in enumerate(pattern)]

    assert find_marginal_bar(answers("rrrw" + "r" * 11)) == pytest.approx(1.0 - 14 / 100)
    assert find_marginal_bar(answers("rrrw" + "r" * 10)) == pytest.approx(1.0 - 2 / 100)
    assert find_marginal_bar(answers("wrr")) == 2.0


def test_a_case_is_answered_as_the_service_does() -> None:
    def case(*readings: ReadingScore) -> ScoredCase:
        return ScoredCase("", "", "a/b", "c.py", "minimal", False, "m", True, readings)

    sure = ReadingScore(0.9, 0.98, -0.1, -0.05, False, True)
    poor = ReadingScore(0.05, 0.01, -30.0, -9.0, False, False)
    chooser = load_chooser()
    assert answer(case(sure, poor), chooser).probability >= chooser.bar
    assert answer(case(sure, poor), chooser).modulo
    assert answer(case(poor), chooser).probability < 0.5
    assert answer(case(ReadingScore(0.5, 0.5, 0.0, 0.0, True, False)), chooser).probability == chooser.written


def git(folder: Path, *arguments: str) -> None:
    user = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *user, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_snippets_are_made_of_any_git_repository(tmp_path: Path) -> None:
    repository, made = tmp_path / "repo", tmp_path / "made"
    repository.mkdir()
    made.mkdir()
    git(repository, "init", "-q")
    body = "".join(f"def f{at}(x):\n    y = x + {at}\n    return y\n\n\n" for at in range(20))
    for number in range(3):
        text = body.replace("y = x + 7", f"y = x + 7 + {number}\n    print(y)")
        (repository / "a.py").write_text(text)
        (repository / "b.bin").write_bytes(b"\0" + bytes([number]))
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", f"change {number}")
    write_changes(repository, made / "pairs.jsonl", 10)
    ((_, records),) = read_records(made)
    assert [(each["repo"], each["path"]) for each in records] == [("repo", "a.py")] * 2
    cases = [case for part in ("train", "test") for case in make_imitations(made, 5, 0, part)]  # type: ignore[arg-type]
    assert cases
    assert all("print(y)" in case.expected for case in cases)


def test_what_is_no_repository_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a git repository"):
        write_changes(tmp_path, tmp_path / "pairs.jsonl", 1)


def test_an_edit_that_needs_no_model_has_no_readings() -> None:
    case = Case("1", "lazy", "lazy", "a.py", "a = 1\nb = 2\n", "a = 3\nb = 2\n", "a = 3\nb = 2\n")
    blank = ScoredCase("k", "1", "r", "a.py", "", False, "m")

    class Merged(Applier):
        def apply(self, request: ApplyRequest, *more: Any) -> Any:
            return None

    found = score_case(case, blank, Merged(lambda: pytest.fail("no model")), SimpleNamespace(take=lambda: None))  # type: ignore[arg-type]
    assert found == blank


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--fit-only", "--scores", "empty.jsonl"], "no case has a reading"), ([], "is compressed; name a plain file")],
)
def test_a_slip_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    given = [str(tmp_path / each) if each.endswith(".jsonl") else each for each in arguments]
    command = [sys.executable, "-m", "benchmarks.train_chooser", *given, "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_probabilities_of_the_card_rise_with_what_is_right() -> None:
    bins = json.loads(WEIGHTS.read_text())["card"]["reliability"]
    right = [each["right"] for each in bins]
    assert np.corrcoef([each["confidence"] for each in bins], right)[0, 1] > 0.95
