"""Measure how fast a file is copied with an edit: `python -m benchmarks.copy --model M --peers vllm`.

Whole-file merges of 100 to 3,000 lines with 1 to 10 hunks, made from real edits by a seeded maker of lazy snippets. The
prompt and the draft are those of an apply of scope `file`; what is written is our own greedy output, right or wrong. It
is timed with drafts and plainly, in our engine and in each peer with the best setting of its own speculation, in turns.
`tok_s`: output tokens by the seconds from the request, with the prompt cached. `cold_seconds`: prompt and all.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from agent_runtime.errors import ModelUnavailable
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import read_folder_tokenizer
from benchmarks.cases import DEFAULT_CASES
from benchmarks.copy.cases import GOAL, HUNKS, LINES, CopyCase, draw_cases, list_cells
from benchmarks.copy.contest import Contest, Limits, Outcome
from benchmarks.copy.report import make_rows, render_tables, summarise
from benchmarks.harness import describe_machine, make_parser, say, warn_if_busy, write_json
from benchmarks.peers.contest import is_there, open_entrants
from benchmarks.peers.environments import PEERS
from benchmarks.peers.protocol import ContestantFailed
from benchmarks.snippets import read_pairs

CONTEXT = 32768
"""Tokens of the longest prompt and its answer."""

FRESH = "fresh"
"""Output that copies nothing, with drafts and without."""


def main() -> None:
    """Measure, print the tables and write the JSON."""
    options = _options()
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    peers = [name for name in options.peers.split(",") if name and is_there(name, cache_dir)]
    print(describe_machine(), flush=True)
    load = warn_if_busy()
    try:
        chosen = draw_cases(read_pairs(options.cases), list_cells(options.cells)[: options.limit], options.seed)
        outcome = _measure(chosen, peers, options, cache_dir)
    except (ContestantFailed, ModelUnavailable, ValueError) as error:
        sys.exit(str(error))
    print(f"\n{options.model}: " + ", ".join(outcome.versions.values()) + f"\n\n{render_tables(outcome)}", flush=True)
    facts = {"machine": describe_machine(), "load_at_start": load, "seed": options.seed}
    write_json(options.json, summarise(options.model, outcome) | facts, make_rows(outcome))


def _options() -> argparse.Namespace:
    parser = make_parser("copy", __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue, a file or a folder")
    parser.add_argument(
        "--quantize",
        choices=["none", "int8", "int4"],
        default="none",
        help="our weights; peers of GGUF files have as many bits",
    )
    parser.add_argument("--peers", default="", help=f"some of {','.join(PEERS)} (`make peers` installs them)")
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="real edits that the merges are made from")
    parser.add_argument("--limit", type=int, help="only so many cases; the goal's is the first")
    parser.add_argument("--seed", type=int, default=1, help="which edits are drawn")
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is measured")
    names = f"{{{','.join(map(str, LINES))}}}x{{{','.join(map(str, HUNKS))}}}"
    parser.add_argument("--only", default="", help=f"only these, by commas: cases {names}; {FRESH}")
    parser.add_argument("--plain-tokens", type=int, default=96, help="of an output that are written plainly; 0: all")
    parser.add_argument("--peer-tokens", type=int, default=768, help="of an output that a peer drafts for")
    parser.add_argument("--minutes", type=float, default=15, help="no round begins later than this")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    only = [name for name in options.only.split(",") if name]
    all_cells = [f"{lines}x{hunks}" for lines, hunks in list_cells()]
    if unknown := set(only) - {*all_cells, FRESH}:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {names} and {FRESH}")
    options.cells = [name for name in only if name in all_cells] or ([GOAL] if only else [])
    options.fresh = not only or FRESH in only
    return options


def _measure(
    chosen: Iterable[Iterable[CopyCase]], peers: Sequence[str], options: argparse.Namespace, cache_dir: Path
) -> Outcome:
    say(f"{options.model}: loading in {', '.join(['hunk', *peers])}")
    with open_entrants(
        options.model,
        CONTEXT,
        peers,
        cache_dir,
        quantize=options.quantize,
        module="benchmarks.copy.ours",
        speculation=True,
    ) as found:
        limits = Limits(options.plain_tokens, options.peer_tokens, options.rounds, options.minutes, options.fresh)
        return Contest(found, limits, _text_of(found.folder)).hold(chosen)


def _text_of(folder: Path) -> Callable[[Sequence[int]], str]:
    token_bytes = read_folder_tokenizer(folder)[0].token_bytes()
    return lambda ids: b"".join(token_bytes[token] for token in ids).decode("utf-8", errors="replace")


if __name__ == "__main__":
    main()
