"""The load on the service: right answers count, wrong ones are errors whose speed is not shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
