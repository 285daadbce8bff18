"""Measure the service under load: `python -m benchmarks.serve`. It starts `hunk serve` itself, on loopback.

    in process     the merge alone, in this process: edits by rule of 100-line files of the standard library
    1, 8, 200      clients that send such an edit, wait for the answer, and send the next one
    mixed          edits by rule and by the model at once, clients that read slowly, and clients that leave half way
    memory         of the service's process over `--minutes` of mixed load

Every answer is compared with the merge in this process; one that differs counts as an error, and no speed is printed
where there is one. The client is a process of its own, which shares the machine's cores with the service.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from benchmarks.harness import Row, describe_machine, make_parser, say, warn_if_busy, write_json
from benchmarks.serve.service import (
    Clients,
    Edit,
    Running,
    Seen,
    make_applier,
    make_model_edits,
    make_rule_edits,
    open_service,
    run_clients,
    watch_memory,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON; end with 1 where an answer was wrong or missing."""
    options = _options(arguments)
    load = warn_if_busy()
    print(describe_machine(), flush=True)
    by_rule = make_rule_edits(options.edits, options.seed)
    in_process_ms = _measure_in_process(by_rule)
    with tempfile.TemporaryDirectory(prefix="hunk-serve-") as name, open_service(options.model, Path(name)) as service:
        rows = [_run_steady(service, by_rule, count, options.seconds, Path(name)) for count in options.clients]
        rows += _run_mixed(service, by_rule, options.seconds, Path(name))
        memory = _measure_memory(service, by_rule, options.minutes * 60, Path(name)) if options.minutes else None
    summary = _summarise(rows, in_process_ms, memory) | {"machine": describe_machine(), "load_at_start": load}
    print(_render_table(rows, summary))
    write_json(options.json, summary, rows)
    sys.exit(bool(summary["errors"]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("serve", __doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 200], help="how many at once (1 8 200)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    parser.add_argument("--minutes", type=float, default=0.0, help="of mixed load over which memory is watched")
    parser.add_argument("--model", default="smollm2-135m", help="for the edits by the model")
    parser.add_argument("--edits", type=int, default=60, help="different edits")
    parser.add_argument("--seed", type=int, default=0, help="which files, and where they are edited")
    options = parser.parse_args(arguments)
    if min(*options.clients, options.edits) < 1 or options.seconds <= 0 or options.minutes < 0:
        parser.error("--clients and --edits must be at least 1, --seconds above 0, --minutes 0 or more")
    return options


def _measure_in_process(edits: Sequence[Edit], rounds: int = 5) -> float:
    pipeline, found = make_applier(), []
    for _ in range(rounds):
        for edit in edits:
            request = edit.request()
            started = time.perf_counter()
            pipeline.apply(request)
            found.append((time.perf_counter() - started) * 1e3)
    return median(found)


def _run_steady(service: Running, edits: Sequence[Edit], count: int, seconds: float, folder: Path) -> Row:
    say(f"{count} clients")
    run_clients(service, [Clients("warm", edits, min(count, 8))], 1.0, folder)
    seen = run_clients(service, [Clients("rule", edits, count)], seconds, folder)["rule"]
    return _make_row(f"{count} clients, by rule", seen)


def _run_mixed(service: Running, edits: Sequence[Edit], seconds: float, folder: Path) -> list[Row]:
    say("mixed")
    seen = run_clients(service, _make_mixture(edits), seconds, folder)
    return [_make_row(f"mixed: {name}", one) for name, one in seen.items()]


def _make_mixture(edits: Sequence[Edit]) -> list[Clients]:
    by_model = make_model_edits(list(edits))
    return [
        Clients("8 by rule", edits, 8),
        Clients("2 by the model", by_model, 2),
        Clients("8 that read slowly", edits, 8, "slow"),
        Clients("4 that leave", [*edits[:10], *by_model[:10]], 4, "leaving"),
    ]


def _make_row(name: str, seen: Seen) -> Row:
    timed = bool(len(seen.latencies_ms) > 1)
    return {
        "what": name,
        "requests_s": round(seen.requests_s, 1) if timed else None,
        "p50_ms": round(seen.quantile_ms(0.5), 2) if timed else None,
        "p99_ms": round(seen.quantile_ms(0.99), 2) if timed else None,
        "statuses": dict(seen.statuses),
        "errors": count_faults(name, seen),
        "faults": dict(seen.faults) | ({"wrong": seen.wrong} if seen.wrong else {}),
    }


def count_faults(name: str, seen: Seen) -> int:
    if "leave" in name:
        return sum(seen.faults.values())
    return seen.num_errors


def _measure_memory(service: Running, edits: Sequence[Edit], seconds: float, folder: Path) -> Row:
    say(f"memory over {seconds / 60:g} minutes")
    loading = threading.Thread(target=run_clients, args=(service, _make_mixture(edits), seconds, folder))
    loading.start()
    found = watch_memory(service, seconds, max(1.0, seconds / 200))
    loading.join()
    time.sleep(2)
    quarter = len(found) // 4
    second, last = found[quarter : 2 * quarter], found[3 * quarter :]
    return {
        "minutes": seconds / 60,
        "second_quarter_mb": round(mean(mb for _, mb in second), 1),
        "last_quarter_mb": round(mean(mb for _, mb in last), 1),
        "threads_at_the_end": service.num_threads,
        "open_files_at_the_end": service.num_open_files,
        "samples": found,
    }


def _summarise(rows: Sequence[Row], in_process_ms: float, memory: Row | None) -> Row:
    single = next((row for row in rows if row["what"].startswith("1 clients")), rows[0])
    summary: Row = {
        "in_process_p50_ms": round(in_process_ms, 3),
        "p50_ms": single["p50_ms"],
        "overhead_ms": round(single["p50_ms"] - in_process_ms, 3),
        "requests_s": max(row["requests_s"] for row in rows if row["what"].endswith("by rule")),
        "errors": sum(row["errors"] for row in rows),
    }
    if memory is not None:
        summary["memory"] = memory
    return summary


def _render_table(rows: Sequence[Row], summary: Row) -> str:
    lines = [f"{'':28} {'requests/s':>10} {'p50 ms':>9} {'p99 ms':>9} {'errors':>7}  statuses"]
    lines.append(f"{'in process, the merge alone':28} {'':>10} {summary['in_process_p50_ms']:9.2f}")
    for row in rows:
        speeds = [row["requests_s"], row["p50_ms"], row["p99_ms"]]
        shown = ["" if value is None or row["faults"].get("wrong") else f"{value:,.2f}" for value in speeds]
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(row["statuses"].items()))
        if row["faults"]:
            statuses += f"; {row['faults']}"
        lines.append(f"{row['what']:28} {shown[0]:>10} {shown[1]:>9} {shown[2]:>9} {row['errors']:>7}  {statuses}")
    lines.append(f"overhead of the service over the merge alone: {summary['overhead_ms']:.2f} ms")
    if memory := summary.get("memory"):
        lines.append(
            f"memory over {memory['minutes']:g} minutes: {memory['second_quarter_mb']:,.0f} MB in the second quarter, "
            f"{memory['last_quarter_mb']:,.0f} MB in the last; {memory['threads_at_the_end']} threads and "
            f"{memory['open_files_at_the_end']} open files at the end"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
