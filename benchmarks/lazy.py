"""How often the model alone merges a lazy snippet right: `python -m benchmarks.lazy --model NAME`.

Cases are `original`, `update` and `expected` (or `vendor_output`, what another service gave) from JSON Lines files.
Results are compared modulo spaces at line ends, blank lines and the final newline, as the recordings are not exact in
these; `wrong` counts results that every check let pass, which is the figure to fear.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from agent_runtime.process import settle
from benchmarks.cases import DEFAULT_CASES, Case, load
from benchmarks.machine import describe
from editor.errors import EditSyntaxError
from editor.formats import parse


def measure(case: Case, model: Any) -> dict[str, Any]:
    """One row: what the model made of the case, checked as every apply is."""
    from agent_runtime.apply import Applier
    from agent_runtime.types import ApplyRequest

    request = ApplyRequest(case.original.encode(), case.edit, path=case.path or case.id, mode="model")
    result = Applier(lambda: model).apply(request)
    exact = _plain(result.file.merged) == _plain(case.expected)
    passed = result.status == "merged"
    outcome = {(True, True): "exact", (True, False): "wrong", (False, True): "exact_rejected"}.get(
        (passed, exact), "refused"
    )
    return {
        "id": case.id,
        "outcome": outcome,
        "failed_checks": [check.name for check in result.file.checks if not check.ok],
        "seconds": result.timings["total_ms"] / 1e3,
        "completion": result.usage.completion,
        "forwards": result.usage.forwards,
    }


def _plain(text: str) -> list[str]:
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def main() -> None:
    """Run all cases and print the counts."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()

    from agent_runtime.models.settings import LoadOptions, ModelSettings
    from agent_runtime.wiring import open_merger

    model = open_merger(options.model, ModelSettings.from_env(os.environ), LoadOptions())
    print(describe())
    rows = []
    loaded = load(options.cases)
    for file in loaded.skipped_files:
        print(f"no cases in {file}", file=sys.stderr)
    for case in (
        case for case in loaded.cases if isinstance(case, Case) and case.format == "lazy" and not case.variety
    ):
        try:
            parse(case.edit, "lazy")
        except EditSyntaxError as error:
            print(f"{case.id}: {error}", file=sys.stderr)
            continue
        rows.append(measure(case, model))
        print(f"{rows[-1]['outcome']:<15}{rows[-1]['seconds']:6.1f} s  {case.id}", file=sys.stderr, flush=True)
    summary = _summary(options.model, rows)
    print(json.dumps(summary, indent=2))
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "rows": rows}, indent=2), encoding="utf-8")


def _summary(model: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts = {
        name: sum(row["outcome"] == name for row in rows) for name in ("exact", "exact_rejected", "refused", "wrong")
    }
    return {
        "model": model,
        "cases": len(rows),
        **counts,
        "seconds_p50": round(statistics.median(row["seconds"] for row in rows), 2) if rows else None,
        "forwards_mean": round(statistics.fmean(row["forwards"] for row in rows), 1) if rows else None,
    }


if __name__ == "__main__":
    main()
