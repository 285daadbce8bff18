"""Cases are of other repositories, rows compare as many tokens, and a run with real models ends with a summary."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import drafts
from benchmarks.drafts import (
    DraftCase,
    Written,
    compute_bound,
    draw_questions,
    find_share_right,
    main,
    make_row,
    render_tables,
    summarise,
    write_plot,
)
from engine.speculation.step_times import StepTimes
from engine.types import GenerationRequest
from tests.models import RealModel

FILE = "".join(f"def f{number}():\n    return {number}\n\n\n" for number in range(60))
ADDED = "def added(one):\n" + "".join(f"    one += {number}\n" for number in range(15)) + "    return one\n"


def pair(number: int, *, adds: bool, text: str = FILE) -> dict[str, Any]:
    """A file of a repository of its own, before a commit and after it."""
    return {"repo": f"r{number}", "path": f"{number}.py", "original": text, "expected": text + ADDED * adds}


def test_each_kind_has_as_many_files_of_other_repositories_as_were_asked_for() -> None:
    pairs = [pair(number % 30, adds=number % 3 == 0) for number in range(60)]
    found = list(draw_questions(pairs, ["function", "tests", "prose"], 3, seed=1))
    assert sorted(kind for kind, *_ in found) == ["function"] * 3 + ["prose"] * 3 + ["tests"] * 3
    assert len({path for _, path, _, _ in found}) == 9
    assert all("`def added(one):`" in question for kind, _, _, question in found if kind == "function")
    assert found == list(draw_questions(pairs, ["function", "tests", "prose"], 3, seed=1))


def test_files_of_another_length_and_small_additions_are_left_out() -> None:
    pairs = [pair(1, adds=True, text="short\n"), pair(2, adds=False), pair(3, adds=True, text=FILE * 9)]
    assert list(draw_questions(pairs, ["function"], 1, seed=1)) == []


def case(kind: str) -> DraftCase:
    return DraftCase(kind, kind, GenerationRequest([1, 2, 3], 9), lambda: None)


def written(num_tokens: int, seconds: float, forwards: int, **sources: dict[str, int]) -> list[Written]:
    return [Written(tuple(range(num_tokens)), seconds, seconds / 2, forwards, sources)]


def test_seconds_are_compared_for_as_many_tokens() -> None:
    model = written(8, 2.0, 4, draft_model={"forwards": 3, "drafted": 6, "accepted": 4, "rejected": 2})
    new = make_row(case("tests"), {"plain": written(8, 4.0, 8), "copy": written(4, 1.5, 4), "model": model})
    edit = make_row(
        case("edit"), {"plain": written(8, 4.0, 8), "copy": written(8, 1.0, 1), "model": written(8, 1.25, 1)}
    )
    assert (new["ratio"], new["ratio_copy"], edit["ratio"]) == (2.0, 1.5, 3.2)
    assert (new["copy"]["same"], new["model"]["tok_s"]) == (4, 8.0)
    assert summarise([new, edit]) == {
        "free_code_ratio": 2.0,
        "worst_ratio": 2.0,
        "copy_ratio": 0.8,
        "forwards_per_token": 0.5,
    }
    times = StepTimes({1: 1.0, 2: 1.0, 16: 1.0, 1024: 2.0})
    table = render_tables([new, edit], times, StepTimes({1: 0.25, 1024: 1.0}))
    assert "2.0 x" in table
    assert "draft_model" in table
    assert summarise([edit])["free_code_ratio"] is None


def test_the_bound_is_that_of_the_best_constant_length() -> None:
    """Free rows, and a draft model of a quarter of the price: 4 tokens that are right 8 times of 10."""
    times, quarter = StepTimes({1: 1.0, 1024: 1.0001}), StepTimes({1: 0.25, 1024: 1.0})
    assert find_share_right(2, 0.8 + 0.64) == pytest.approx(0.8)
    assert find_share_right(3, 0.0) < 1e-9
    best = max(sum(0.8**i for i in range(k + 1)) / (1 + 0.25 * k) for k in (1, 2, 3, 4, 6))
    assert compute_bound(0.8, times, quarter) == pytest.approx(best, rel=1e-3)


def test_a_run_with_real_models_writes_the_summary(
    tmp_path: Path, smollm2: RealModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model drafts for itself: all of it is right."""
    pairs = "".join(json.dumps(pair(number, adds=True)) + "\n" for number in range(4))
    for name in drafts.FILES:
        (tmp_path / name).write_bytes(gzip.compress(pairs.encode()))
    monkeypatch.setattr(drafts, "COMMITS", tmp_path)
    arguments = ["--model", smollm2.name, "--draft-model", smollm2.name, "--only", "function", "--limit", "1"]
    monkeypatch.setattr(sys, "argv", ["drafts", *arguments, "--tokens", "24", "--json", str(tmp_path / "out.json")])
    sys.argv += ["--plot", str(tmp_path / "out.png")]
    main()
    answer = json.loads((tmp_path / "out.json").read_text())
    assert set(answer["summary"]) >= {"free_code_ratio", "worst_ratio", "copy_ratio", "forwards_per_token"}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    (row,) = answer["rows"]
    assert row["model"]["same"] == row["copy"]["same"] == row["plain"]["tokens"]
    assert row["plain"]["forwards_per_token"] == 1.0
    assert "forwards a token" in capsys.readouterr().out


@pytest.mark.parametrize("tok_s", [(2.965488058019691,) * 3, (8.8, 15.3, 17.4), (0.01, 3.0, 900.0)])
def test_any_speeds_can_be_drawn(tmp_path: Path, tok_s: tuple[float, ...]) -> None:
    """A layout that fails is a warning, which is an error here."""
    speeds = dict(zip(("plain", "copy", "model"), tok_s, strict=True))
    row = {"kind": "function"} | {way: {"tokens": 24, "tok_s": speed} for way, speed in speeds.items()}
    write_plot([row], tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_kind_ends_with_the_kinds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["drafts", "--only", "poems"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "there is no poems; there are function, tests, chat, prose, edit" in capsys.readouterr().err
