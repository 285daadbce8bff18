"""`python -m benchmarks.gpu.host`: what the host does while a pass runs is not counted, what it does behind it is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import host


def test_only_the_time_between_two_passes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(host, "time", SimpleNamespace(perf_counter=lambda: clock[0], sleep=sleep))
    card = host.FakeCard()
    launch: Any = card(lambda: pytest.fail("the work is never run"))
    wait = card.make_wait(lambda output: output)
    launch()
    clock[0] = 0.002  # while the pass runs
    wait(None)
    assert clock[0] == host.PASS_S
    clock[0] = 0.006
    launch()
    clock[0] = 0.013  # two milliseconds after its end
    wait(None)
    clock[0] = 0.014
    launch()
    assert card.host_s == pytest.approx([0.001, 0.003])


@pytest.mark.parametrize(("way", "tokens"), [("plain", 1), ("8 rows", 8), ("temperature 0.2", 1)])
def test_all_users_decode_in_each_measured_pass(way: str, tokens: int) -> None:
    seconds, tokens_a_pass = host.measure_core(3, way, 40, 6)
    assert 0.0 < seconds < 1.0
    assert tokens_a_pass == 3 * tokens


def test_streams_are_read_to_their_end() -> None:
    seconds, tokens_a_pass = host.measure_streams(3, "streams", 20, 6)
    assert 0.0 < seconds < 1.0
    assert tokens_a_pass == 3


def test_the_table_has_a_row_for_each_way_and_number_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "USERS", (1, 2))
    host.main(["--passes", "3", "--context", "20", "--json", str(tmp_path / "host.json")])
    rows = json.loads((tmp_path / "host.json").read_text())["rows"]
    assert [(row["way"], row["users"]) for row in rows] == [(way, users) for way in host.WAYS for users in (1, 2)]
    assert "tokens a pass" in capsys.readouterr().out
