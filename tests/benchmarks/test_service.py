"""Benchmarks of the service: their clients, attackers, writers and counts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.__main__ import COUNTED, render_table, summarise
from benchmarks.faults.damage import count_torn, make_edit, make_files, read_numbers
from benchmarks.faults.setting import count_lost, make_setting, measure_loads, run_race
from benchmarks.serve.__main__ import _make_row, _render_table, _summarise
from benchmarks.serve.service import Clients, Edit, Running, Seen, make_applier, make_rule_edits, run_clients
from tests.agent_runtime.serving import serving


def seen_of(url: str, edits: Sequence[Edit], folder: Path) -> Seen:
    service = Running(int(url.rpartition(":")[2]), os.getpid())
    return run_clients(service, [Clients("some", edits, 2)], 0.3, folder)["some"]


def test_the_edits_are_different_and_their_hashes_those_of_the_merge() -> None:
    edits = make_rule_edits(9, seed=3)
    assert len({edit.text for edit in edits}) == 9
    for edit in edits:
        assert edit.original.count("\n") == 100
        assert make_applier().apply(edit.request()).file.sha256_after == edit.sha256
    assert make_rule_edits(9, seed=3) == edits


def test_answers_are_compared_and_a_wrong_one_is_an_error_without_a_speed(tmp_path: Path) -> None:
    edits = make_rule_edits(4, seed=0)
    with serving(None) as url:
        good = seen_of(url, edits, tmp_path)
        bad = seen_of(url, [replace(edit, sha256="0" * 64) for edit in edits], tmp_path)
    assert good.statuses.keys() == {"200"}
    assert good.num_errors == 0
    assert bad.wrong == bad.num_errors == sum(bad.statuses.values()) > 0
    rows = [_make_row("1 clients, by rule", good), _make_row("2 clients, by rule", bad)]
    assert rows[0]["p50_ms"] > 0
    first, second = _render_table(rows, _summarise(rows, 1.0, None)).splitlines()[2:4]
    assert f"{rows[0]['requests_s']:,.2f}" in first
    assert f"{rows[1]['requests_s']:,.2f}" not in second
    assert "wrong" in second


def test_a_service_that_is_gone_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    edits = make_rule_edits(2, seed=0)
    with serving(None) as url:
        pass
    gone = seen_of(url, edits, tmp_path)
    assert not gone.latencies_ms
    assert gone.num_errors > 0


def test_a_service_that_is_attacked_loses_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.faults.setting.ATTACK_STARTS_S", 0.5)
    setting = make_setting(tmp_path)
    with setting.open_service("--no-watch") as service:
        rows = measure_loads(setting, service, ["deep-bodies"], seconds=1.5, seed=0)
    assert [row["what"] for row in rows] == ["idle, before each attack", "deep-bodies"]
    for row in rows:
        assert row["statuses"].keys() == {"200"}
        assert row["requests"] > 2
    assert sum(rows[1]["attackers"].values()) > 3
    summary = summarise(rows)
    assert [summary[name] for name in COUNTED] == [0, 0, 0]
    assert "1 writes for each pair of writers; lost_requests 0, lost_updates 0" in render_table(rows, summary, 1)


def test_updates_of_two_writers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file, journals = tmp_path / "sub" / "raced.txt", str(tmp_path / "journals")
    row = run_race("", file, ("root", str(tmp_path), journals), ("root", str(tmp_path / "sub"), journals), 40)
    assert (row["writes"], row["lost_updates"], row["torn"]) == (40, 0, 0)


@pytest.mark.parametrize("text", ["", "number = 1\n", "number = 2\n" + make_edit(0), None])
def test_files_that_are_torn_or_gone_or_of_two_writes_are_counted(tmp_path: Path, text: str | None) -> None:
    make_files(tmp_path)
    assert (read_numbers(tmp_path), count_torn(tmp_path)) == ({0}, 0)
    if text is None:
        (tmp_path / "3.py").unlink()
    else:
        (tmp_path / "3.py").write_text(text)
    assert count_torn(tmp_path) == 1
    (tmp_path / ".1234-0.hunk").touch()
    assert count_torn(tmp_path) == 2


def test_a_refusal_is_no_loss_and_a_fault_is() -> None:
    assert count_lost(Counter({"200": 9, "429": 2, "503": 1, "422": 1})) == 0
    assert count_lost(Counter({"500": 1, "404": 2})) == 3
    rows: list[dict[str, Any]] = [
        {"what": "idle", "polite_p99_ms": 2.0, "healthz_longest_ms": 3.0},
        {"what": "a", "polite_p99_ms": 7.0, "healthz_longest_ms": 1.0, "lost_requests": 2},
        {"what": "b", "lost_updates": 3, "torn": 1},
    ]
    assert summarise(rows) == {
        "lost_requests": 2,
        "lost_updates": 3,
        "torn": 1,
        "healthz_longest_ms": 3.0,
        "polite_p99_ratio": 3.5,
    }
