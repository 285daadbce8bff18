"""Count and time what is run again of an agent's prompts: `python -m benchmarks.reuse --model M --session FILE`.

Recorded sessions are replayed turn by turn in a window of 16k tokens (see `compaction`), all of a folder through one
engine, one after the other. Tokens are counted over all turns by the engine's own bookkeeping, without a forward pass:

    exact      the longest cached prefix: what vLLM, SGLang and TensorRT-LLM do
    fast       and unchanged tokens after a change, but for the rest of the changed segment
    turbo      and all unchanged tokens
    balanced   the exact prefix of a prompt that keeps files as they were and has notes on what changed

`fast` and `turbo` are counted with time between the turns, while tools run, in which the engine runs exactly what it
took over: as much as it needs, as much as 2,048 tokens take, none. Sessions that read whole files are replayed a second
time with these files in the prompt (see `workspace`). The same is counted of turns around one edit in a context of
6,000 tokens. Unless `--count-only`, a sample is timed: to the first token, cold, after the exact prefix and in each
mode, with peers on the same prompts. What reuse does to answers is measured by `benchmarks.reuse.quality`: from here
with `--probes`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_runtime.errors import BadFile, HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import open_tokenizer
from agent_runtime.process import build_environment
from benchmarks.harness import describe_machine, make_parser, say, warn_if_busy, write_json
from benchmarks.reuse.edits import count_edits, make_edit_pairs
from benchmarks.reuse.prompts import (
    ALL,
    Books,
    Prompt,
    Prompts,
    SessionCount,
    build_prompts,
    build_workspace_prompts,
    count_session,
)
from benchmarks.reuse.report import (
    make_count_rows,
    make_edit_rows,
    make_time_rows,
    render_counts,
    render_edits,
    render_times,
    summarise,
)
from benchmarks.reuse.sessions import Session, load_sessions
from benchmarks.reuse.times import run_contest

MODES = ("exact", "balanced", "fast", "turbo")
IDLE = (ALL, 2_048, 0)
"""Tokens that there is time for between two turns: 2,048 are two seconds with the 0.5B model on two cores."""

COUNTED_PAIRS = 40
"""Edits of each source that are counted."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, measure, print the tables, write the JSON."""
    options = _options(arguments)
    print(describe_machine(), flush=True)
    try:
        found = load_sessions(options.session)
        prompts = Prompts(open_tokenizer(options.model, ModelSettings.from_env(os.environ)))
    except BadFile as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except HunkError as error:
        sys.exit(str(error))
    for why, files in found.skipped.items():
        say(f"skipped, {why}: {', '.join(file.name for file in files)}")
    load_at_start = warn_if_busy()
    made = {session.name: build_prompts(session, prompts) for session in found.sessions}
    counts = _count(made, options.modes)
    workspace = _count_workspace(found.sessions, prompts, options.modes)
    edits = count_edits(make_edit_pairs(prompts.tokenizer, COUNTED_PAIRS, options.seed), options.modes)
    parts = [render_counts("the conversation as recorded", counts)]
    parts += [render_counts("files kept in the prompt", workspace)] if workspace else []
    print("\n\n".join(["", options.model, *parts, render_edits(edits)]), flush=True)
    timed: dict[str, Any] = {}
    if not options.count_only:
        timed = _measure(options, prompts, made)
    facts = {
        "model": options.model,
        "machine": describe_machine(),
        "load_at_start": load_at_start,
        "seed": options.seed,
    }
    facts |= {"memory": timed["memory"]} if timed else {}
    summary = summarise(counts, workspace, edits, timed.get("times", ()), timed.get("quality", {}))
    rows = make_count_rows(counts, "conversation") + make_count_rows(workspace, "workspace") + make_edit_rows(edits)
    write_json(options.json, facts | summary, rows + make_time_rows(timed.get("times", ())))


def _count(made: Mapping[str, Sequence[Prompt]], modes: Sequence[Any]) -> list[SessionCount]:
    """Every session in every mode that has the recorded prompts; exactness gains nothing from time between turns."""
    counts = []
    for mode in modes:
        if mode == "balanced":
            continue
        for idle in (0,) if mode == "exact" else IDLE:
            books = Books()
            counts += [count_session(name, prompts, mode, books, idle=idle) for name, prompts in made.items()]
    return counts


def _count_workspace(sessions: Sequence[Session], prompts: Prompts, modes: Sequence[Any]) -> list[SessionCount]:
    """Return the sessions that read whole files, with these in the prompt; in `balanced` with notes on what changed."""
    made: dict[str, list[Prompt]] = {}
    noted: dict[str, list[Prompt]] = {}
    for session in sessions:
        found = build_workspace_prompts(session, prompts, "exact")
        if found:
            made[session.name] = found
            if "balanced" in modes:
                noted[session.name] = build_workspace_prompts(session, prompts, "balanced")
    books = Books()
    balanced = [count_session(name, found, "exact", books) for name, found in noted.items()]
    for one in balanced:
        one.mode = "balanced"
    counts = _count(made, modes)
    return [one for one in counts if one.mode == "exact"] + balanced + [one for one in counts if one.mode != "exact"]


def _measure(options: argparse.Namespace, prompts: Prompts, made: Mapping[str, Sequence[Prompt]]) -> dict[str, Any]:
    """Measure times, memory and quality, and print their tables."""
    times, memory, versions = run_contest(options, prompts, made)
    print(f"\n{', '.join(versions)}\n\n{render_times(times)}\n", flush=True)
    shown = ", ".join(
        f"{name.removesuffix('_bytes')} {size / 1e6:,.0f} MB" for name, size in memory.items() if size > 1e6
    )
    print(f"memory: {shown}; a token {memory['token_bytes']:,} bytes", flush=True)
    return {"times": times, "memory": memory, "quality": _measure_quality(options) if options.probes else {}}


def _measure_quality(options: argparse.Namespace) -> dict[str, Any]:
    """Run `benchmarks.reuse.quality` in another process, and return its summary, by mode."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "quality.json"
        command = [sys.executable, "-m", "benchmarks.reuse.quality", "--model", options.model, "--json", str(out)]
        command += ["--probes", str(options.probes), "--seed", str(options.seed)]
        if subprocess.run(command, env=os.environ | build_environment(os.environ), check=False).returncode:
            sys.exit("benchmarks.reuse.quality failed; its message stands above")
        return dict(json.loads(out.read_text(encoding="utf-8"))["summary"])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("reuse", __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue, a file or a folder")
    parser.add_argument("--session", type=Path, required=True, help=".jsonl, .jsonl.gz, .traj.gz or a folder of them")
    parser.add_argument("--mode", default=",".join(MODES), help="which modes, by commas")
    parser.add_argument("--count-only", action="store_true", help="no model is loaded, only its tokenizer")
    parser.add_argument("--turns", type=int, default=2, help="timed: so many turns, and so many after compactions")
    parser.add_argument("--pairs", type=int, default=3, help="timed: so many recorded edits, and so many made ones")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed")
    parser.add_argument("--seed", type=int, default=1, help="which turns and edits")
    parser.add_argument("--peers", default="", help="`vllm`, with its prefix caching on (`make peers` installs it)")
    parser.add_argument("--probes", type=int, default=0, help="probes of a kind that answers are judged by")
    options = parser.parse_args(arguments)
    options.modes = [mode for mode in options.mode.split(",") if mode]
    if unknown := set(options.modes) - set(MODES):
        parser.error(f"--mode: there is no {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    if min(options.turns, options.pairs, options.probes) < 0 or options.rounds < 1:
        parser.error("--turns, --pairs and --probes must not be negative, --rounds at least 1")
    return options


if __name__ == "__main__":
    main()
