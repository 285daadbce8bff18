"""What was counted and measured as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine.tables import number, table
from benchmarks.reuse.counting import ALL, SessionCount
from benchmarks.reuse.edit_counting import EditCount
from benchmarks.reuse.rows import EXACT_MODES, Row, count_rows, count_totals, edit_totals, time_totals
from benchmarks.reuse.timing import PairTimes

NAME_CHARS = 28


def count_tables(title: str, counts: Sequence[SessionCount]) -> str:
    """Tokens by mode over all sessions, and each session's share where there are some."""
    parts = [_totals(title, count_totals(counts))]
    parts += [_sessions(count_rows(counts))] if len({each.session for each in counts}) > 1 else []
    return "\n\n".join(parts)


def edit_table(edits: Sequence[EditCount]) -> str:
    """Tokens of the turn behind an edit, by where the edits come from."""
    heads = ["one edit in the middle", "mode", "edits", "prompt tokens", "recomputed", "of exact prefix's", "p90"]
    lines = [
        [
            row["source"],
            row["mode"],
            str(row["edits"]),
            f"{row['prompt_tokens']:,.0f}",
            f"{row['recomputed_tokens']:,.0f}",
            _share(row["recomputed_vs_prefix"]),
            _share(row["recomputed_vs_prefix_p90"]),
        ]
        for row in edit_totals(edits)
    ]
    return table(heads, lines)


def time_tables(times: Sequence[PairTimes]) -> str:
    """Times to the first token, by kind of turn."""
    heads = [
        "turn",
        "",
        "turns",
        "recomputed",
        "p50 s",
        "p90 s",
        "of cold",
        "of exact prefix's",
        "floor s",
        "same token",
    ]
    lines = [
        [
            row["kind"],
            row["mode"],
            str(row["pairs"]),
            number(row["recomputed_tokens"]),
            f"{row['ttft_p50']:.3f}",
            f"{row['ttft_p90']:.3f}",
            f"{row['ttft_ratio_cold']:.3f}",
            f"{row['ttft_ratio_prefix']:.3f}",
            "-" if row["floor"] is None else f"{row['floor']:.3f}",
            _share(row["same_first_token"]),
        ]
        for row in time_totals(times)
    ]
    return table(heads, lines)


def _totals(title: str, rows: Sequence[Row]) -> str:
    heads = [title, "turns", "prompt tokens", "cached exact", "reused approx.", "recomputed", "of prompt"]
    heads += ["of exact prefix's", "by reason", "after compactions", "run while idle"]
    lines = [
        [
            _mode(row),
            f"{row['turns']:,}",
            f"{row['prompt_tokens']:,}",
            f"{row['cached_tokens']:,}",
            f"{row['reused_tokens']:,}",
            f"{row['recomputed_tokens']:,}",
            f"{row['recomputed_share']:.2%}",
            _share(row["recomputed_vs_prefix"]),
            ", ".join(f"{reason} {tokens:,}" for reason, tokens in row["recomputed_by"].items()),
            f"{row['recomputed_after_compaction']:,}",
            f"{row['rebuilt_tokens']:,}",
        ]
        for row in rows
    ]
    new = rows[0]["new_share"]
    return f"{table(heads, lines)}\n\nNew in its turn, so that no prefix can hold it: {new:.2%} of the prompt tokens."


def _sessions(rows: Sequence[Row]) -> str:
    modes = list(dict.fromkeys(_mode(row) for row in rows))
    sessions: dict[str, dict[str, Row]] = {}
    for row in rows:
        sessions.setdefault(row["session"], {})[_mode(row)] = row
    heads = ["session", "turns", "compactions", "prompt tokens", "new", *modes]
    lines = []
    for name, found in sessions.items():
        one = next(iter(found.values()))
        shares = [f"{found[mode]['recomputed_share']:.2%}" if mode in found else "-" for mode in modes]
        counts = [f"{one[key]:,}" for key in ("turns", "compactions", "prompt_tokens")]
        lines.append([_short(name), *counts, f"{one['new_share']:.2%}", *shares])
    return table(heads, lines)


def _mode(row: Row) -> str:
    if row["mode"] in EXACT_MODES or row["idle"] == ALL:
        return str(row["mode"])
    return f"{row['mode']}, idle {row['idle']:,}" if row["idle"] else f"{row['mode']}, never idle"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _short(name: str) -> str:
    """A session's name; trajectories of SWE-agent are called after all their settings."""
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 3]}..."
