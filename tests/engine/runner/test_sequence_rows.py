"""The slots of a sequence's rows."""

from __future__ import annotations

from engine.runner.step_rows import PagedRows


def test_positions_become_slots_page_by_page() -> None:
    rows = PagedRows([0] * 4, [6, 7, 8, 10], [5, 2, 9])
    assert rows.slots(4).tolist() == [2 * 4 + 2, 2 * 4 + 3, 9 * 4, 9 * 4 + 2]
    assert rows.seq_len == 11
    assert PagedRows([0], [6], [-1, 2]).slots(4).tolist() == [10]
