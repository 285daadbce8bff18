"""`python -m benchmarks.edit`: the keys of interfaces.md, counts that add up, answers judged right."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import Case, select_part
from benchmarks.edit.__main__ import summarise
from benchmarks.edit.run import Row, measure
from benchmarks.scoring import OUTCOMES, take_percentile
from editor.types import AlreadyApplied, MergeOutcome
from tests.benchmarks.test_cases import ANSWERS, SAMPLES, case, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("one", "outcome", "wrong_certain"), ANSWERS)
def test_an_answer_falls_into_one_count(one: Case, outcome: str, wrong_certain: bool) -> None:
    row = measure(one, repeats=0)
    assert (row.outcome, row.wrong_certain) == (outcome, wrong_certain)


def test_variety_is_counted_apart_and_inexact_data_both_ways() -> None:
    cases = [case("b\n", "c\n", "a\nb\n", "a\nc\n"), case("b\n", "c\n", "a\nb\n", "a\nc", inexact=True)]
    cases += [case("b\n", "c\n", "a\nb\n", "no\n", variety=True)]
    summary = summarise([measure(one, repeats=1) for one in cases])
    assert (summary["cases"], summary["exact"], summary["wrong_certain"]) == (2, 2, 0)
    assert summary["inexact"]["exact"] == 1
    assert summary["variety"]["aider"]["wrong_certain"] == 1


def test_percentiles_are_by_nearest_rank() -> None:
    assert take_percentile([], 0.5) is None
    assert take_percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert take_percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0


def test_the_command_writes_the_keys_and_its_counts_add_up(tmp_path: Path) -> None:
    write(tmp_path, "all.jsonl", *SAMPLES.values())
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.edit", "--cases", str(tmp_path), "--json", str(out), "--repeats", "1"]
    done = subprocess.run([*command, "--no-scale"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text("utf-8"))
    summary = found["summary"]
    for block in (summary, *summary["by_format"].values()):
        assert sum(block[outcome] for outcome in OUTCOMES) == block["cases"]
        assert {"wrong_certain", "certain_share", "p50_ms", "p99_ms"} <= block.keys()
    assert sum(block["cases"] for block in summary["by_format"].values()) == summary["cases"]
    assert {"id", "format", "outcome", "rung", "certain", "failed_checks", "ms"} <= found["rows"][0].keys()


def _read(expected: str, style: str = "minimal", certainty: str = "certain", **more: Any) -> Row:
    lazy = Case("x", "lazy", "lazy", "x.py", "a = 1\n\nb = 2\n", "a = 1\nb = 3\n", expected, style=style)
    row = measure(lazy, repeats=0)
    return replace(row, certainty=certainty, first_modulo=expected != "", first=expected == "a", **more)


def test_readings_are_counted_by_style_and_language_with_what_is_claimed_of_them() -> None:
    rows = [
        _read("a"),
        _read("b", certainty="likely"),
        _read("", certainty="likely"),
        _read("", "chat", "", hidden=True),
    ]
    summary = summarise(rows)
    assert summary["by_style"].keys() == {"minimal"}
    assert summary["by_language"].keys() == {"python"}
    found = summary["by_style"]["minimal"]
    assert (found["n"], found["first"]["right"], found["first_modulo"]["right"]) == (3, 1, 2)
    assert summary["certain"] == {"n": 1, "wrong": 0, "upper95": pytest.approx(0.7935, abs=1e-3)}
    assert summary["likely"] == {"n": 2, "wrong": 1, "upper95": pytest.approx(0.9055, abs=1e-3)}
    assert summary["hidden"]["n"] == 1


def test_the_instruction_is_what_is_said_beside_an_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, ...]] = []

    def overhear(*args: Any) -> MergeOutcome:
        heard.append(args[3])
        return AlreadyApplied("")

    monkeypatch.setattr("benchmarks.edit.run.merge", overhear)
    measure(Case("x", "lazy", "lazy", "x.py", "a\n", "b\n", "b\n", instruction="Remove a"), repeats=0)
    assert heard == [("Remove a",)]


def test_a_part_has_only_edits_of_known_repositories() -> None:
    cases = [replace(case("a\n", "b\n", "a\n", "b\n"), repo=repo) for repo in ("", "cline/cline", "gin-gonic/gin")]
    assert [one.repo for one in cases if one in select_part(cases, "train")] == ["cline/cline"]
    assert [one.repo for one in cases if one in select_part(cases, "test")] == ["gin-gonic/gin"]
    assert len(select_part(cases, "all")) == 3
