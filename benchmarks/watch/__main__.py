"""Measure what it costs to know a repository in tokens: `python -m benchmarks.watch --synthetic 10000`.

Texts are real: the standard library and the installed packages, and where more files are asked for, parts of them.

    cold index         RepoCache.open on a folder: walk, read, hash, encode; in turns with `tokenizers`' own
                       encode_batch, which has the same texts in memory (the ceiling). Spans, which are cut when they
                       are asked for, are counted apart.
    warm start         the same with a store that an earlier start has filled
    one-line edit      from the call that names the file to the snapshot with its tokens and spans, in files of 100 to
                       10,000 lines; `whole` is the plain tokenizer with the same text, and every fifth is compared
    event to snapshot  from the end of a write to the update of a subscriber, the debounce taken off
    branch switch      from the end of `git checkout` to the snapshot with all files
    memory             what a process grows by when it indexes, a million tokens
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import open_tokenizer
from benchmarks.harness import Row, describe_machine, make_parser, say, take_percentile, warn_if_busy, write_json
from benchmarks.watch.edits import Edits, Watching, measure_edits, measure_watching
from benchmarks.watch.indexing import Indexing, Sources, measure_indexing, write_repository

LINES = (100, 1_000, 10_000)
SWITCH_FILES = 2_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON."""
    options = _options(arguments)
    load = warn_if_busy()
    print(describe_machine(), flush=True)
    sources = Sources.find_sources(options.seed)
    with tempfile.TemporaryDirectory(prefix="hunk-watch-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        tokenizer_file = _find_tokenizer_file(options.tokenizer, folder)
        indexed = _index_all(options, sources, tokenizer_file, folder)
        edits = []
        for lines in LINES:
            say(f"one-line edits in {lines} lines")
            place = folder / f"edits-{lines}"
            edits.append(measure_edits(place, sources, tokenizer_file, lines, options.edits, options.seed))
        say(f"a branch switch of {options.switch_files} files")
        place = folder / "watched"
        watching = measure_watching(place, sources, tokenizer_file, options.switch_files, options.rounds, options.seed)
    rows = make_rows(indexed, edits, watching)
    print(render_table(rows))
    summary = summarise(indexed, edits, watching) | {"machine": describe_machine(), "load_at_start": load}
    write_json(options.json, summary, rows)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("watch", __doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--repo", type=Path, help="index this folder, as it is")
    which.add_argument(
        "--synthetic", type=int, nargs="+", metavar="FILES", help="repositories of so many files (1000)", default=[1000]
    )
    parser.add_argument("--tokenizer", default="qwen2.5-coder-0.5b", help="the tokenizer of this model")
    parser.add_argument("--rounds", type=int, default=3, help="how often folders are indexed and branches switched")
    parser.add_argument("--edits", type=int, default=200, help="edits of each length of file")
    parser.add_argument("--switch-files", type=int, default=SWITCH_FILES, help="files that a branch switch changes")
    parser.add_argument("--seed", type=int, default=0, help="which texts, and where they are edited")
    options = parser.parse_args(arguments)
    if options.repo is not None and not options.repo.is_dir():
        parser.error(f"--repo: {options.repo} is no folder")
    if min(options.rounds, options.edits, options.switch_files, *options.synthetic) < 1:
        parser.error("--rounds, --edits, --switch-files and --synthetic must be at least 1")
    return options


def _find_tokenizer_file(model: str, folder: Path) -> Path:
    file = folder / "tokenizer.json"
    try:
        open_tokenizer(model, ModelSettings.from_env(os.environ)).save(file)
    except HunkError as error:
        sys.exit(f"the tokenizer is that of {model}: {error}")
    return file


def _index_all(options: argparse.Namespace, sources: Sources, tokenizer_file: Path, folder: Path) -> list[Indexing]:
    if options.repo is not None:
        say(f"indexing {options.repo}")
        return [measure_indexing(options.repo, tokenizer_file, folder / "store", options.rounds, say)]
    found = []
    for count in options.synthetic:
        say(f"writing {count} files")
        place = folder / f"files-{count}"
        write_repository(place, list(sources.texts(count, options.seed)))
        found.append(measure_indexing(place, tokenizer_file, folder / f"store-{count}", options.rounds, say))
        shutil.rmtree(place)
    return found


def make_rows(indexed: Sequence[Indexing], edits: Sequence[Edits], watching: Watching) -> list[Row]:
    """Return what was measured, line by line: what, its value, its ratio to something else, and a note."""
    rows: list[tuple[str, str, str, str]] = []
    for one in indexed:
        cold, ceiling, name = median(one.cold), median(one.ceiling), f"{one.num_files:,} files"
        mb, tokens, warm = one.num_bytes / 1e6, one.num_tokens / 1e6, median(one.warm)
        share = f"{one.ceiling_share:.2f} of its speed"
        rows += [
            (f"{name}: cold index", f"{cold:.2f} s", "", f"{mb:.1f} MB, {tokens:.2f} M tokens"),
            ("  a second", f"{mb / cold:.2f} MB", "", f"{tokens / cold:.3f} M tokens"),
            ("  encode_batch alone", f"{ceiling:.2f} s", share, f"{tokens / ceiling:.3f} M tokens a second"),
            ("  all spans, when asked for", f"{one.spans:.2f} s", "", "one thread"),
            (f"{name}: warm start", f"{warm:.2f} s", f"{cold / warm:.1f} x cold", ""),
            (f"{name}: a rescan that finds nothing", f"{median(one.rescan) * 1e3:.0f} ms", "", ""),
            (f"{name}: memory", f"{one.mb_a_million_tokens:.1f} MB", "", "a million tokens"),
        ]
    for each in edits:
        note = f"p99 {take_percentile(each.refreshed, 99) * 1e3:.2f} ms, whole {median(each.whole) * 1e3:.1f} ms, "
        note += f"{median(each.encoded):.0f} of {each.num_tokens:,} tokens"
        value = f"{median(each.refreshed) * 1e3:.2f} ms"
        rows.append((f"one-line edit in {each.num_lines:,} lines", value, f"{each.speedup:.0f} x whole", note))
    delay, note = median(watching.delays), f"p99 {take_percentile(watching.delays, 99) * 1e3:.1f} ms"
    rows.append(("event to snapshot, after the debounce", f"{delay * 1e3:.1f} ms", "", note))
    note = f"after the checkout, which took {median(watching.checkout_seconds):.2f} s"
    seconds = f"{median(watching.switch_seconds):.2f} s"
    rows.append((f"branch switch, {watching.switch_files:,} files", seconds, "", note))
    return [dict(zip(("what", "value", "ratio", "of"), row, strict=True)) for row in rows]


def summarise(indexed: Sequence[Indexing], edits: Sequence[Edits], watching: Watching) -> dict[str, Any]:
    """Return the figures by the names of the interface; of several repositories, those of the largest."""
    largest = max(indexed, key=lambda one: one.num_files)
    summary: dict[str, Any] = {
        "files": largest.num_files,
        "index_seconds": median(largest.cold),
        "index_mb_s": largest.num_bytes / median(largest.cold) / 1e6,
        "index_tok_s": largest.num_tokens / median(largest.cold),
        "index_ceiling_share": largest.ceiling_share,
        "warm_seconds": median(largest.warm),
        "rescan_ms": median(largest.rescan) * 1e3,
        "mb_a_million_tokens": largest.mb_a_million_tokens,
        "event_p50_ms": median(watching.delays) * 1e3,
        "event_p99_ms": take_percentile(watching.delays, 99) * 1e3,
        "switch_seconds": median(watching.switch_seconds),
    }
    for one in edits:
        summary[f"edit_speedup_{one.num_lines}_lines"] = one.speedup
        summary[f"edit_p50_ms_{one.num_lines}_lines"] = median(one.refreshed) * 1e3
        summary[f"edit_p99_ms_{one.num_lines}_lines"] = take_percentile(one.refreshed, 99) * 1e3
    return summary


def render_table(rows: Sequence[Row]) -> str:
    width = max(len(row["what"]) for row in rows)
    return "\n".join(
        f"{row['what']:<{width}}  {row['value']:>10}  {row['ratio']:<20} {row['of']}".rstrip() for row in rows
    )


if __name__ == "__main__":
    main()
