"""Measure replicas and the shared tier: `python -m benchmarks.scale`.

    tier      a prefix that is computed, and the same from Valkey: on loopback, over links of limited rate, and with a
              server that is dead; the median time to the first token, as a share of computing it
    replicas  seeded sessions of agents over real commits, on local replicas: requests sent to any replica, and to the
              one that holds the session's KV; with and without the tier

Links are limited by `tc tbf` in a network namespace, for which this has to run as root on Linux; else they are skipped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import DEFAULT_CASES
from benchmarks.harness import describe_machine, make_parser, render_table, say, warn_if_busy, write_json
from benchmarks.scale.replicas import ROUTES, measure_replicas
from benchmarks.scale.tier import measure_tier

PARTS = ("tier", "replicas")


def main() -> None:
    """Run the parts, print their tables and write the JSON."""
    options = _options()
    warn_if_busy()
    rows: list[dict[str, Any]] = []
    if "tier" in options.only:
        rows += measure_tier(options.model, options.tokens, options.repeats, options.links)
    if "replicas" in options.only:
        for number in options.replicas:
            for route in ROUTES:
                rows += measure_replicas(options, number, route)
    print(describe_machine())
    for part in PARTS:
        of_part = [row for row in rows if row["part"] == part]
        if of_part:
            print(render_table(list(of_part[0]), [[str(value) for value in row.values()] for row in of_part]))
    write_json(options.json, summarise(rows), rows)


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures that the goals name; None where a part was not run.

    Ratios of times to the first token are against requests that are sent to any replica, at the most replicas.
    """
    most = max((row["replicas"] for row in rows if row["part"] == "replicas"), default=0)
    by_route = {row["route"]: row for row in rows if row["part"] == "replicas" and row["replicas"] == most}
    any_, sticky = by_route.get("any"), by_route.get("session")
    both = any_ is not None and sticky is not None
    ratios = [row["ratio"] for row in rows if row["part"] == "tier"]
    of_replicas = [row for row in rows if row["part"] == "replicas"]
    return {
        "hit_share": sticky["hit_share"] if sticky else None,
        "ttft_p50_ratio": round(sticky["ttft_p50"] / any_["ttft_p50"], 3) if both and any_ and sticky else None,
        "ttft_p90_ratio": round(sticky["ttft_p90"] / any_["ttft_p90"], 3) if both and any_ and sticky else None,
        "remote_vs_recompute": ratios[0] if ratios else None,
        "worst_link": max(ratios, default=None),
        "lost": sum(row["lost"] for row in of_replicas) if of_replicas else None,
        "foreign": sum(row["foreign"] for row in of_replicas) if of_replicas else None,
    }


def _options() -> argparse.Namespace:
    parser = make_parser("scale", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--tokens", type=int, default=4000, help="of the prefix (default 4000)")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement of the tier (default 5)")
    parser.add_argument(
        "--links", nargs="*", type=float, default=[0.1, 1.0, 10.0], metavar="GBIT", help="rates in Gbit/s"
    )
    parser.add_argument("--replicas", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--sessions", type=int, default=8, help="(default 8)")
    parser.add_argument("--turns", type=int, default=6, help="of each session (default 6)")
    parser.add_argument("--session-tokens", type=int, default=3000, help="of a session's files (default 3000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES / "commits")
    return parser.parse_args()


def take_percentiles(seconds: list[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile."""
    cuts = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
    return statistics.median(seconds), cuts[8]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
