"""What the benchmarks share: the machine's line, tables, medians, messages and the file of `--json`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from agent_runtime.errors import ModelUnavailable

One = TypeVar("One")
Result = TypeVar("Result")
Row = dict[str, Any]

BUSY = 0.5
"""Load of the machine, in running processes, from which times are not to be kept."""


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Make the parser of a command, with `--json`."""
    formatter = argparse.RawDescriptionHelpFormatter
    prog = f"python -m benchmarks.{name}"
    parser = argparse.ArgumentParser(prog=prog, description=description, formatter_class=formatter)
    parser.add_argument("--json", type=Path, help="write summary and rows there")
    return parser


def describe_machine() -> str:
    """Return processor, cores in use, memory and the versions that decide speed, in one line."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "")
    extensions = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if f" {flag}" in cpuinfo]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model or platform.machine()} ({extensions[0] if extensions else 'no vector extension known'}), "
        f"{len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


def warn_if_busy() -> float:
    """Return the machine's load; print a warning where it spoils times."""
    load = os.getloadavg()[0]
    if load > BUSY:
        say(f"the machine is busy (load {load:.1f}): these figures are not to be kept")
    return load


def say(line: str) -> None:
    """Print progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def write_json(path: Path | None, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Write summary and rows to the file of `--json`, if one was named."""
    if path is not None:
        path.write_text(
            json.dumps({"summary": summary, "rows": rows, **more}, indent=1, ensure_ascii=False), encoding="utf-8"
        )


def map_in_processes(
    work: Callable[[One], Result], ones: Iterable[One], workers: int, chunksize: int
) -> Iterator[Result]:
    """Yield `work(one)` for each one, in order, computed by so many processes; by this one where `workers` is 1."""
    if workers < 2:
        yield from map(work, ones)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(work, ones, chunksize=chunksize)


def group_by(ones: Iterable[One], key: Callable[[One], str]) -> dict[str, list[One]]:
    """Return the members of each group, the groups in the order of their first members."""
    groups: dict[str, list[One]] = {}
    for one in ones:
        groups.setdefault(key(one), []).append(one)
    return groups


def refuse_model() -> NoReturn:
    """Raise ModelUnavailable; an `Applier` with this in place of a model merges by rule alone."""
    raise ModelUnavailable("rules only")


def take_median(rows: Sequence[Row], key: str) -> float | None:
    """Return the median of a figure over the rows that have it."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def take_percentile(values: Iterable[float], percent: float) -> float:
    """Return a percentile, the nearest value that was measured; there must be one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]


def format_number(value: float | None) -> str:
    """Format with three digits or thousands separators; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def render_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Render a Markdown table with padded columns."""
    widths = [max(len(line[column]) for line in (heads, *lines)) for column in range(len(heads))]
    padded = [
        [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in (heads, ["-" * width for width in widths], *lines)
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def render_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Render rows as a table, "" without rows.

    `columns` maps heads to format strings over a row's keys: {"of cold": "{ttft_ratio_cold:.3f}"}. The format `n`
    is `format_number`, `x` a ratio such as "2.5 x"; None becomes `-`.
    """
    cells = [[_FORMATTER.vformat(text, (), row) for text in columns.values()] for row in rows]
    return render_table(list(columns), cells) if cells else ""


class _CellFormatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "-"
        if format_spec == "n":
            return format_number(value)
        return f"{value:.1f} x" if format_spec == "x" else format(value, format_spec)


_FORMATTER = _CellFormatter()
