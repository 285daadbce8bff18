"""What is run again of an agent's prompts, mode by mode: `python -m benchmarks.reuse --model M --session FILE`.

A recorded session is replayed turn by turn in a window of 16k tokens (see `compaction`); all sessions of a folder go
through one engine, one after the other. Tokens are counted over all turns by the engine's own bookkeeping:

    exact   the longest cached prefix: what vLLM, SGLang and TensorRT-LLM do
    fast    and unchanged tokens behind a change, but for the rest of the changed segment
    turbo   and all unchanged tokens

`fast` and `turbo` are counted twice: with time between the turns, while tools run, in which the engine runs the prompt
exactly, and without any.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_runtime.errors import BadFile, HunkError
from agent_runtime.models.model_tokenizer import open_tokenizer
from agent_runtime.models.settings import ModelSettings
from benchmarks.machine import describe
from benchmarks.reuse.counting import Books, SessionCount, count, prompts_of
from benchmarks.reuse.prompts import Prompts
from benchmarks.reuse.rows import count_rows, count_summary
from benchmarks.reuse.sessions import load
from benchmarks.reuse.tables import count_tables

MODES = ("exact", "fast", "turbo")


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, measure, print the tables, write the JSON."""
    options = _options(arguments)
    print(describe(), flush=True)
    try:
        prompts = Prompts(open_tokenizer(options.model, ModelSettings.from_env(os.environ)))
        found = load(options.session)
    except BadFile as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except HunkError as error:
        sys.exit(str(error))
    for why, files in found.skipped.items():
        print(f"skipped, {why}: {', '.join(file.name for file in files)}", file=sys.stderr)
    made = {session.name: prompts_of(session, prompts) for session in found.sessions}
    counts = [each for mode in options.modes for idle in _idle(mode) for each in _count(made, mode, idle)]
    print(count_tables(counts), flush=True)
    summary: dict[str, Any] = {"model": options.model, "machine": describe(), **count_summary(counts)}
    if options.json:
        written = {"summary": summary, "rows": count_rows(counts)}
        options.json.write_text(json.dumps(written, indent=1), encoding="utf-8")


def _idle(mode: str) -> tuple[bool, ...]:
    """Whether there is time between turns; exactness gains nothing from it."""
    return (False,) if mode == "exact" else (True, False)


def _count(made: dict[str, Any], mode: Any, idle: bool) -> list[SessionCount]:
    books = Books()
    return [count(name, prompts, mode, books, rebuilds=idle) for name, prompts in made.items()]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reuse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue, a file or a folder")
    parser.add_argument("--session", type=Path, required=True, help=".jsonl, .jsonl.gz, .traj.gz or a folder of them")
    parser.add_argument("--mode", default=",".join(MODES), help="which modes, by commas")
    parser.add_argument("--count-only", action="store_true", help="no model is loaded, only its tokenizer")
    parser.add_argument("--json", type=Path, help="write summary and rows there, too")
    options = parser.parse_args(arguments)
    options.modes = [mode for mode in options.mode.split(",") if mode]
    if unknown := set(options.modes) - set(MODES):
        parser.error(f"--mode: there is no {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    return options


if __name__ == "__main__":
    main()
