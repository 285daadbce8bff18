"""Measure replicas and the shared tier: `python -m benchmarks.scale`.

    tier      a prefix that is computed, and the same from Valkey: on loopback, over links of limited rate, and with a
              server that is dead, and with delays; the median time to the first token, as a share of computing it
    replicas  seeded sessions of agents over real commits, on local replicas, by round robin and by Serve's consistent
              hashing; then a simulator, whose rates are measured, beside those runs and for 8 to 64 replicas
    overhead  a rule edit and a model request through a service with a replica, beside one without
    kills     edits by a model that are written while replicas are killed: what is lost, what is written twice

Links are limited by `tc tbf` in a network namespace, for which this has to run as root on Linux; else they are skipped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import DEFAULT_CASES
from benchmarks.harness import describe_machine, make_parser, render_table, say, warn_if_busy, write_json
from benchmarks.scale.replicas import measure_replicas
from benchmarks.scale.services import measure_kills, measure_overhead
from benchmarks.scale.tier import measure_tier

PARTS = ("replicas", "overhead", "kills", "tier")


def main() -> None:
    """Run the parts, print their tables and write the JSON."""
    options = _options()
    warn_if_busy()
    rows: list[dict[str, Any]] = []
    if "replicas" in options.only:
        rows += measure_replicas(options)
    if "overhead" in options.only:
        rows += measure_overhead(options.model, options.requests)
    if "kills" in options.only:
        rows.append(measure_kills(options.model, options.edits))
    if "tier" in options.only:  # the last, as its model stays in memory
        rows += measure_tier(options.model, options.tokens, options.repeats, options.links, options.delays)
    print(describe_machine())
    for part in (*PARTS, "simulated"):
        of_part = [row for row in rows if row["part"] == part]
        if of_part:
            names = list(dict.fromkeys(name for row in of_part for name in row))
            print(render_table(names, [[str(row.get(name, "")) for name in names] for row in of_part]))
    write_json(options.json, summarise(rows), rows)


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures that the goals name; None where a part was not run.

    Ratios of times to the first token are those of the hash to round robin, both without the tier, at the most
    replicas. `simulator_error`: the largest deviation of a simulated median from the measured one, as a share of it.
    """
    runs = [row for row in rows if row["part"] == "replicas"]
    most = max((row["replicas"] for row in runs), default=0)
    by_route = {row["route"]: row for row in runs if row["replicas"] == most and not row["tier"]}
    sticky, any_ = (by_route.get(route, {}) for route in ("hash", "round robin"))
    tier = [row["ratio"] for row in rows if row["part"] == "tier"]
    rules = [row["ratio"] for row in rows if row.get("what") == "rule edit"]
    more = [row["more_ms"] for row in rows if row.get("what") == "model request"]
    errors = [abs(row["simulated_ttft_p50"] / row["ttft_p50"] - 1) for row in runs if row.get("simulated_ttft_p50")]
    return {
        "hit_share": sticky.get("hit_share"),
        "ttft_p50_ratio": _divide(sticky, any_, "ttft_p50"),
        "ttft_p90_ratio": _divide(sticky, any_, "ttft_p90"),
        "remote_vs_recompute": tier[0] if tier else None,
        "worst_link": max(tier, default=None),
        "rule_p50_ratio": rules[0] if rules else None,
        "model_request_ms": more[0] if more else None,
        "simulator_error": round(max(errors), 3) if errors else None,
        "lost": _add(rows, "lost"),
        "doubled": _add(rows, "doubled"),
        "foreign": _add(rows, "foreign"),
    }


def _divide(one: dict[str, Any], other: dict[str, Any], name: str) -> float | None:
    return round(one[name] / other[name], 3) if one.get(name) and other.get(name) else None


def _add(rows: list[dict[str, Any]], name: str) -> int | None:
    found = [row[name] for row in rows if name in row]
    return sum(found) if found else None


def _options() -> argparse.Namespace:
    parser = make_parser("scale", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--tokens", type=int, default=4000, help="of the tier's prefix (default 4000)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement of the tier (default 3)")
    parser.add_argument(
        "--links", nargs="*", type=float, default=[0.1, 1.0, 10.0], metavar="GBIT", help="rates in Gbit/s"
    )
    parser.add_argument(
        "--delays", nargs="*", type=float, default=[5.0, 50.0], metavar="MS", help="of a link, each way (default 5, 50)"
    )
    parser.add_argument("--replicas", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--sessions", type=int, default=8, help="(default 8)")
    parser.add_argument("--turns", nargs=2, type=int, default=[16, 40], metavar=("FEWEST", "MOST"), help="of a session")
    parser.add_argument("--session-tokens", type=int, default=6000, help="most of a session (default 6000)")
    parser.add_argument("--think", type=float, default=3.0, help="mean seconds before a turn (default 3)")
    parser.add_argument("--simulated-replicas", nargs="*", type=int, default=[8, 16, 32, 64])
    parser.add_argument("--simulated-links", nargs="*", type=float, default=[0.1, 1.0, 10.0, 25.0], metavar="GBIT")
    parser.add_argument("--requests", type=int, default=200, help="of each kind of the overhead (default 200)")
    parser.add_argument("--edits", type=int, default=24, help="that are written while replicas die (default 24)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES / "commits")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
