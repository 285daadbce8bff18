"""Attack and damage a running service: `python -m benchmarks.faults`. It starts `hunk serve` itself, on loopback.

    idle                     a polite tenant sends one-line edits, a probe asks `/healthz` every 50 ms
    ATTACK, all at once      the same next to attackers from 127.0.0.2; `--attacks` chooses them; idle before each
    SIGTERM under all        how long the service takes to end
    kills                    SIGKILL in the middle of writes, and a start
    disks, damaged caches    no room for a write; every file of the cache folder damaged in one way
    races                    two writers of one file that know nothing of each other, `--writes` updates for each pair

All share the machine's cores; the attackers have the lowest priority there. The end is 1 where a request or an update
was lost, or a file torn.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.attackers import KINDS
from benchmarks.faults.damage import damage_caches, fill_disk, kill_in_writes
from benchmarks.faults.setting import make_setting, measure_loads, run_races, stop_under_attack
from benchmarks.harness import Row, describe_machine, make_parser, write_json

COUNTED = ("lost_requests", "lost_updates", "torn")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON; end with 1 where something was lost or torn."""
    options = _options(arguments)
    print(describe_machine(), flush=True)
    load = os.getloadavg()[0]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hunk-faults-") as name:
        setting = make_setting(Path(name))
        with setting.open_service() as service:
            rows += measure_loads(setting, service, options.attacks, options.seconds, options.seed)
            rows.append(stop_under_attack(setting, service, options.attacks))
        rows.append(kill_in_writes(setting, options.kills, options.seed))
        rows += fill_disk(setting)
        rows += damage_caches(setting, options.seed)
        rows += run_races(setting, options.writes)
    summary = summarise(rows)
    print(render_table(rows, summary, options.writes))
    facts = {"machine": describe_machine(), "load_at_start": load, "writes": options.writes}
    write_json(options.json, summary | facts, rows)
    sys.exit(any(summary[name] for name in COUNTED))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("faults", __doc__)
    parser.add_argument("--attacks", nargs="+", choices=KINDS, default=list(KINDS), help="which (all)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--writes", type=int, default=1000, help="of each pair of writers; `hunk apply` makes fewer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or min(options.kills, options.writes) < 1:
        parser.error("--seconds must be above 0, --kills and --writes at least 1")
    return options


def summarise(rows: Sequence[Row]) -> Row:
    """What was lost and torn in all rows, the probe's longest wait, and the polite tenant's p99 by that of idle."""
    idle, *attacked = [row for row in rows if "polite_p99_ms" in row]
    ratios = [row["polite_p99_ms"] / idle["polite_p99_ms"] for row in attacked]
    summary: Row = {name: sum(row.get(name, 0) for row in rows) for name in COUNTED}
    summary["healthz_longest_ms"] = max(row["healthz_longest_ms"] for row in (idle, *attacked))
    return summary | {"polite_p99_ratio": round(max(ratios, default=1.0), 2)}


def render_table(rows: Sequence[Row], summary: Row, num_writes: int) -> str:
    """Return one line for each row, and the summary."""
    lines = [f"{'':36} {'healthz ms':>10} {'p50 ms':>8} {'p99 ms':>8} {'lost':>5} {'lost updates':>12} {'torn':>5}"]
    for row in rows:
        cells = [row.get(name, "") for name in ("healthz_longest_ms", "polite_p50_ms", "polite_p99_ms", *COUNTED)]
        shown = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, (10, 8, 8, 5, 12, 5), strict=True))
        lines.append(f"{row['what']:36} {shown}  {_render_row(row)}".rstrip())
    shown = ", ".join(f"{name} {value}" for name, value in summary.items())
    return "\n".join([*lines, f"{num_writes} writes for each pair of writers; {shown}"])


def _render_row(row: Row) -> str:
    said = [f"{key}: {count:,}" for key, count in sorted(row.get("statuses", {}).items())]
    said += [f"{row[key]:,} {key}" for key in ("writes", "refused") if key in row]
    said += [f"ended in {row['ended_s']} s"] if "ended_s" in row else []
    attackers = ", ".join(f"{key}: {count:,}" for key, count in sorted(row.get("attackers", {}).items()))
    return "; ".join([", ".join(said), *([f"attackers {attackers}"] if attackers else [])])


if __name__ == "__main__":
    main()
