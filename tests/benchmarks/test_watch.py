"""The benchmark of the repository cache measures what it says, on folders small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import take_percentile
from benchmarks.watch import __main__ as watch
from benchmarks.watch.edits import measure_edits
from benchmarks.watch.indexing import Sources, write_repository


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.find_sources(0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LINES", (20, 60))


ARGUMENTS = ["--rounds", "1", "--edits", "3", "--switch-files", "12", "--tokenizer", "smollm2-135m"]


@pytest.mark.usefixtures("short")
def test_all_that_is_measured_of_a_repository_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch.main([*ARGUMENTS, "--synthetic", "25", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    summary = found["summary"]
    assert summary["files"] == 25
    assert summary["index_ceiling_share"] > 0
    assert {"edit_speedup_20_lines", "edit_p50_ms_60_lines", "warm_seconds", "mb_a_million_tokens"} <= summary.keys()
    printed = capsys.readouterr().out
    assert all(row["what"].strip() in printed for row in found["rows"])
    assert "branch switch, 12 files" in printed


@pytest.mark.usefixtures("short")
def test_a_folder_is_measured_without_what_it_ignores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "repo"
    (folder / "built").mkdir(parents=True)
    (folder / ".gitignore").write_text("built/\n", encoding="utf-8")
    (folder / "a.py").write_text("a = 1\r\n", encoding="utf-8", newline="")
    (folder / "built" / "b.py").write_text("b = 1\n", encoding="utf-8")
    (folder / "c.bin").write_bytes(b"\0\xff")
    watch.main([*ARGUMENTS, "--repo", str(folder)])
    assert "2 files: cold index" in capsys.readouterr().out


def test_texts_are_different_and_the_same_for_a_seed(sources: Sources) -> None:
    few = Sources(sources.paths[:7])
    texts = list(few.texts(30, seed=3))
    assert len(set(texts)) == len(texts) == 30
    assert texts == list(few.texts(30, seed=3))
    assert texts != list(few.texts(30, seed=4))


def test_a_long_text_has_so_many_lines(sources: Sources) -> None:
    assert sources.long_text(1234).count("\n") == 1234


def test_an_edit_is_of_one_line_and_compared_with_encoding_the_file_whole(sources: Sources, tmp_path: Path) -> None:
    tokenizer_file = watch._find_tokenizer_file("smollm2-135m", tmp_path)
    found = measure_edits(tmp_path / "edits", sources, tokenizer_file, 200, 10, 0)
    assert len(found.refreshed) == len(found.encoded) == 10
    assert all(0 < count < found.num_tokens / 4 for count in found.encoded)
    assert found.speedup > 0


def test_a_repository_lies_in_folders(tmp_path: Path) -> None:
    write_repository(tmp_path, [(".py", f"a = {number}\n") for number in range(100)])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 100
    assert len({path.parent for path in files}) == 3


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (take_percentile(values, 99), take_percentile(values, 50), take_percentile([4.0], 99)) == (100.0, 51.0, 4.0)


@pytest.mark.parametrize("arguments", [["--repo", "/nosuch"], ["--synthetic", "0"], ["--rounds", "0"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        watch.main(arguments)


def test_a_model_that_there_is_not_is_named_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nosuch"):
        watch.main([*ARGUMENTS, "--tokenizer", "nosuch", "--synthetic", "2"])
