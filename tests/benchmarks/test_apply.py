"""`python -m benchmarks.apply`: the keys of interfaces.md, counts that add up, answers of rules and models judged."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import ModelUnavailable
from agent_runtime.llm.interface import Merger, ModelMerge, ModelTask
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import Options
from benchmarks.apply.__main__ import summarise
from benchmarks.apply.growth import measure_growth
from benchmarks.apply.run import Row, RowJournal, measure
from benchmarks.cases import Case, PatchCase, load_cases_at
from benchmarks.scoring import OUTCOMES
from tests.agent_runtime.scripted import ScriptedMerger
from tests.benchmarks.test_cases import ANSWERS, SAMPLES, case, write
from tests.benchmarks.test_snippets import stock_pairs

ROOT = Path(__file__).resolve().parents[2]
REPOS = ROOT / "benchmarks" / "repos"


def no_model() -> Merger:
    raise ModelUnavailable("there is none")


def by_rule(one: Case) -> Row:
    return measure(one, Applier(no_model), Options(mode="deterministic"))


def by_model(one: Case, answer: str, **more: Any) -> Row:
    return measure(one, Applier(lambda: ScriptedMerger(answer, **more)), Options(mode="model"))


@pytest.mark.parametrize(("one", "outcome", "wrong_certain"), ANSWERS)
def test_an_answer_of_rules_falls_into_one_count(one: Case, outcome: str, wrong_certain: bool) -> None:
    row = by_rule(one)
    assert (row.outcome, row.wrong_certain) == (outcome, wrong_certain)
    assert not row.asked_model


PYTHON = case("x = 1\n", "x = 2\n", "x = 1\nf(a, b)\n", "x = 2\nf(a, b)\n", "x.py")


@pytest.mark.parametrize(
    ("answer", "expected", "outcome", "syntax_equal"),
    [
        ("x = 2\nf(a, b)", "x = 2\nf(a, b)\n", "exact", True),
        ("x = 2\nf(a, b)", "x = 2\nf(a,  b)\n", "wrong", True),
        ("x = 2\nf(a, b)", "x = 2\nf(b, a)\n", "wrong", False),
        ("x = 2\nf(b, a)", "x = 2\nf(b, a)\n", "refused", False),
        ("x = 1\nf(a, b)", "x = 2\nf(a, b)\n", "refused", False),
    ],
)
def test_an_answer_of_a_model_is_never_wrong_and_certain(
    answer: str, expected: str, outcome: str, syntax_equal: bool
) -> None:
    row = by_model(case("x = 1\n", "x = 2\n", "x = 1\nf(a, b)\n", expected, "x.py"), answer)
    assert (row.outcome, row.syntax_equal, row.wrong_certain) == (outcome, syntax_equal, False)
    assert (row.asked_model, row.certainty, row.usage["forwards"]) == (True, "model", 2)
    assert bool(row.diff) == (outcome != "exact")


def test_a_model_that_is_not_there_is_a_refusal_with_its_reason() -> None:
    row = measure(PYTHON, Applier(no_model), Options(mode="model"))
    assert (row.outcome, row.reason, row.asked_model) == ("refused", "ModelUnavailable", True)


def test_what_a_check_rejects_is_refused_even_where_it_had_to_be() -> None:
    assert by_model(PYTHON, "x = 2\nf(a, b)", truncated=True).outcome == "refused"
    refusal = case("x = 1\n", "x = 2\n", "x = 1\nf(a, b)\n", "x = 1\nf(a, b)\n", "x.py", expects="refusal")
    assert by_model(refusal, "x = 2\nf(a, b)", truncated=True).outcome == "refused"
    assert by_model(refusal, "x = 2\nf(a, b)").outcome == "wrong"


def patch_case(expected: dict[str, str], **more: Any) -> PatchCase:
    edit = (
        "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** Update File: b.py\n"
        "*** Move to: c.py\n@@\n-y = 1\n+y = 2\n*** Delete File: d.py\n*** End Patch\n"
    )
    files = {"a.py": "x = 1\n", "b.py": "y = 1\n", "d.py": "z = 1\n", "e.py": "kept\n"}
    return PatchCase("p", "repo", edit, files, expected, **{"refused": False} | more)


RIGHT = {"a.py": "x = 2\n", "c.py": "y = 2\n", "e.py": "kept\n"}


@pytest.mark.parametrize(
    ("one", "outcome", "wrong_certain", "syntax_equal"),
    [
        (patch_case(RIGHT), "exact", False, True),
        (patch_case(RIGHT | {"a.py": "x  =  2\n"}), "wrong", True, True),
        (patch_case(RIGHT | {"c.py": "y = 3\n"}), "wrong", True, False),
        (patch_case(RIGHT | {"d.py": "z = 1\n"}), "wrong", True, False),
        (patch_case(RIGHT, refused=True), "wrong", True, True),
    ],
)
def test_files_are_compared_all_of_them(one: PatchCase, outcome: str, wrong_certain: bool, syntax_equal: bool) -> None:
    row = measure(one, Applier(no_model), Options(mode="deterministic"))
    assert (row.outcome, row.wrong_certain, row.syntax_equal) == (outcome, wrong_certain, syntax_equal)


def test_a_patch_that_is_rightly_refused_counts_so() -> None:
    one = PatchCase("p", "codex", "*** Begin Patch\n*** End Patch\n", {"a": "x\n"}, {"a": "x\n"}, refused=True)
    assert measure(one, Applier(no_model), Options(mode="deterministic")).outcome == "refused"


def test_counts_add_up_and_variety_is_apart() -> None:
    rows = [by_rule(case("b\n", "c\n", "a\nb\n", expected)) for expected in ("a\nc\n", "a\nd\n")]
    spaced = case("x = 1\n", "x = 2\n", "x = 1\nf(a, b)\n", "x = 2\nf(a,  b)\n", "x.py")
    rows += [by_rule(case("b\n", "c\n", "a\nb\n", "no\n", variety=True)), by_model(spaced, "x = 2\nf(a, b)")]
    summary = summarise(rows)
    for block in (summary, *summary["by_format"].values(), *summary["by_certainty"].values()):
        assert sum(block[outcome] for outcome in OUTCOMES) == block["cases"]
    assert (summary["cases"], summary["exact"], summary["wrong"], summary["wrong_certain"]) == (3, 1, 2, 1)
    assert (summary["asked_model"], summary["forwards_mean"], summary["wrong_syntax_equal"]) == (1, 2.0, 1)
    assert summary["exact_share"] == round(1 / 3, 4)
    assert summary["variety"]["aider"]["wrong_certain"] == 1


def test_the_small_repositories_are_cases() -> None:
    cases = load_cases_at(REPOS).cases
    assert len(cases) == 6
    rows = [measure(one, Applier(no_model), Options(mode="deterministic")) for one in cases]
    assert {row.outcome for row in rows} == {"exact", "refused"}
    assert sum(row.outcome == "refused" for row in rows) >= 2
    assert all(row.reason == "not_found" for row in rows if row.outcome == "refused")


class Knows(ScriptedMerger):
    """Answers with the file as the case expects it."""

    def __init__(self, case: PatchCase) -> None:
        super().__init__()
        self.answers = {case.files[path]: text for path, text in case.expected.items() if path in case.files}

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        self.text = self.answers[task.text]
        return super().merge(task, context, progress)


def test_a_model_that_is_asked_for_and_answers_as_expected_makes_every_repository_exact() -> None:
    for one in load_cases_at(REPOS).cases:
        assert isinstance(one, PatchCase)
        row = measure(one, Applier(partial(Knows, one)), Options(mode="model"))
        assert (row.outcome, row.asked_model) == ("exact", row.certainty == "model"), one.id


def test_what_is_quoted_from_memory_is_refused_unless_the_model_is_asked_for() -> None:
    rows = [measure(one, Applier(no_model), Options()) for one in load_cases_at(REPOS).cases]
    assert {(row.outcome, row.reason) for row in rows} == {("exact", ""), ("refused", "not_found")}


def test_growth_applies_the_same_edit_at_every_length() -> None:
    long = "        if number < {0}:\n" + "            name = name.strip()\n" * 7
    pairs = [
        replace(pair, after=pair.before.replace("        known =", long.format(number) + "        known ="))
        for number, pair in enumerate(stock_pairs())
    ]
    blocks = measure_growth(pairs, Applier(lambda: ScriptedMerger("")), Options(), 2, (200, 600))
    assert [block["lines"] for block in blocks] == [200, 600]
    assert {block["edits"] for block in blocks} == {2}
    assert blocks[0]["ratio"] == 1.0


def test_the_command_writes_the_keys_without_a_model(tmp_path: Path) -> None:
    write(tmp_path, "all.jsonl", *SAMPLES.values())
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.apply", "--mode", "deterministic", "--cases", str(tmp_path)]
    done = subprocess.run(
        [*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text("utf-8"))
    summary = found["summary"]
    assert sum(summary[outcome] for outcome in OUTCOMES) == summary["cases"]
    keys = {"wrong_certain", "certain_share", "p50_ms", "p99_ms", "by_format", "seconds_p50", "seconds_p99"}
    assert keys | {"forwards_mean"} <= summary.keys()
    assert "no such" not in done.stderr
    assert done.stderr.count("\n") == len(found["rows"])


def make_row(name: str, **more: Any) -> Row:
    return Row(name, "lazy", "markers", "lazy", "text", 3, inexact=False, variety=False, **more)


def test_a_run_goes_on_with_the_rows_that_it_has(tmp_path: Path) -> None:
    settings = {"mode": "auto"}
    path = tmp_path / "rows.jsonl"
    first = RowJournal(path, settings)
    rows = [make_row("one", failed_checks=("accounted",), usage={"forwards": 2}), make_row("two")]
    assert [first.append(row) for row in rows] == rows
    with path.open("a", encoding="utf-8") as file:
        file.write('{"id": "cut sho')
    again = RowJournal(path, settings)
    assert again.find("one") == rows[0]
    assert again.find("two") == rows[1]
    again.append(make_row("three"))
    assert RowJournal(path, settings).find("three") == make_row("three")
    with pytest.raises(SystemExit, match="measured with"):
        RowJournal(path, {"mode": "model"})
    assert RowJournal(None, settings).find("one") is None


def test_made_snippets_are_cases_with_their_style(tmp_path: Path) -> None:
    records = [
        {"id": pair.id, "path": pair.path, "original": pair.before, "update": "x", "expected": pair.after}
        for pair in stock_pairs()[:2]
    ]
    write(tmp_path, "lazy.jsonl", *records)
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.apply", "--mode", "deterministic", "--cases", str(tmp_path)]
    flags = ["--styles", "markers", "bare_hunks", "--json", str(out)]
    subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(out.read_text("utf-8"))
    assert [row["style"] for row in found["rows"]] == ["markers", "bare_hunks"] * 2
    assert found["summary"]["by_style"]["markers"]["cases"] == 2


def test_cases_that_are_not_there_are_named() -> None:
    command = [sys.executable, "-m", "benchmarks.apply", "--cases", "/no/such/folder"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "/no/such/folder: no such file or folder" in done.stderr
