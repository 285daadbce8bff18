"""`make gpu-check`: stages that go on where they stopped, and one clear line where there is no card."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import check
from benchmarks.gpu.check import main, run_stage, write_page
from benchmarks.gpu.users import main as users
from benchmarks.gpu.users import measure_users

COUNTS = "import pathlib, sys; file = pathlib.Path(sys.argv[1]); file.write_text(file.read_text() + 'x'); print('ran')"


def test_a_stage_that_has_passed_is_not_run_again_and_one_that_failed_is(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")
    for expected in ("x", "x"):
        assert run_stage("tests", ("-c", COUNTS, str(count)), tmp_path, 60)["returncode"] == 0
        assert count.read_text() == expected
    assert (tmp_path / "tests.txt").read_text() == "ran\n"
    for _ in range(2):
        assert run_stage("ops", ("-c", "raise SystemExit(3)"), tmp_path, 60)["returncode"] == 3
    assert run_stage("ops", ("-c", "print('mended')"), tmp_path, 60)["returncode"] == 0


def test_a_stage_that_takes_too_long_is_ended_and_keeps_its_output(tmp_path: Path) -> None:
    slow = ("-c", "import time; print('begun', flush=True); time.sleep(60)")
    assert run_stage("engine", slow, tmp_path, 1)["returncode"] == 124
    assert (tmp_path / "engine.txt").read_text() == "begun\n\nended after 1 s\n"
    assert json.loads((tmp_path / "engine.json").read_text())["command"] == list(slow)


def test_the_page_shows_what_each_stage_printed_and_the_shares_it_found(tmp_path: Path) -> None:
    run_stage("engine", ("-c", "print('<figures> & more')"), tmp_path, 60)
    rows = [
        {"model": "1.5b", "figure": "plain decoding, tok/s", "bound": 200.0, "values": [90.0, 100.0, 120.0]},
        {"model": "1.5b", "figure": "pass over 64 rows, ms", "bound": 1.0, "values": [4.0]},
        {"model": "1.5b", "figure": "second turn, ms", "bound": 1.0, "values": []},
    ]
    (tmp_path / "engine-figures.json").write_text(json.dumps({"rows": rows}))
    write_page(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "&lt;figures&gt; &amp; more" in page
    assert "engine: passed" in page
    assert "50%" in page
    assert "25%" in page
    assert "second turn" not in page


def test_failed_stages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "cuda_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(check, "STAGES", {"good": ("-c", "print('{stage}')"), "bad": ("-c", "import nothing_such")})
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path)])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "failed: bad" in said
    assert (tmp_path / "good.txt").read_text() == "good\n"
    assert "nothing_such" in (tmp_path / "index.html").read_text()


def test_a_stage_that_lacks_something_says_what_and_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "cuda_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    stages = {"ops": ("-c", "print('ran')"), **dict.fromkeys(("weights", "vllm-1.5b"), ("-c", "raise SystemExit(1)"))}
    assert stages.keys() <= check.STAGES.keys()
    monkeypatch.setattr(check, "STAGES", stages)
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path)])
    assert ended.value.code == 0
    said = capsys.readouterr().err
    assert "weights: left out: there are no weights of qwen2.5-coder-1.5b: `hunk models pull" in said
    assert "vllm-1.5b: left out: vLLM is not installed in this Python" in said
    assert "all stages passed, left out: weights, vllm-1.5b" in said


def test_each_number_of_users_is_warmed_up_before_it_is_measured() -> None:
    runs: list[tuple[int, int]] = []

    def run(num_users: int, num_tokens: int, temperature: float, top_p: float) -> float:
        runs.append((num_users, num_tokens))
        return 100.0 * num_users * (1 + temperature)

    rows = measure_users(run, 96)
    assert runs == [(users, tokens) for users in (1, 16, 64) for _ in range(3) for tokens in (24, 96)]
    assert [row["users"] for row in rows] == [1, 16, 64]
    assert rows[1]["greedy"] == 1600.0
    assert rows[1]["temperature 0.7"] == pytest.approx(2720.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
@pytest.mark.parametrize("command", [main, users])
def test_without_a_card_both_say_so(
    command: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["check"])
    assert callable(command)
    with pytest.raises(SystemExit) as ended:
        command([])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no CUDA device" in line
