"""What it costs to know a repository in tokens: `python -m benchmarks.watch --synthetic 10000`, or `--repo PATH`.

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
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import open_tokenizer
from benchmarks.harness import describe_machine, warn_if_busy
from benchmarks.watch.edits import Edits, Watching, measure_edits, measure_watching
from benchmarks.watch.indexing import Indexing, Sources, measure_indexing, take_quantile, write_repository

LINES = (100, 1_000, 10_000)
SWITCH_FILES = 2_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON."""
    options = _options(arguments)
    load = warn_if_busy()
    print(describe_machine(), flush=True)
    sources = Sources.find_sources(options.seed)
    with _make_scratch() as folder:
        tokenizer_file = _find_tokenizer_file(options.tokenizer, folder)
        indexed = _index_all(options, sources, tokenizer_file, folder)
        edits = []
        for lines in LINES:
            _say(f"one-line edits in {lines} lines")
            place = folder / f"edits-{lines}"
            edits.append(measure_edits(place, sources, tokenizer_file, lines, options.edits, options.seed))
        _say(f"a branch switch of {options.switch_files} files")
        place = folder / "watched"
        watching = measure_watching(place, sources, tokenizer_file, options.switch_files, options.rounds, options.seed)
    rows = [*_make_index_rows(indexed), *_make_edit_rows(edits), *_make_watch_rows(watching)]
    print(render_table(rows))
    if options.json:
        summary = summarise(indexed, edits, watching) | {"machine": describe_machine(), "load_at_start": load}
        options.json.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1), encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument("--json", type=Path, help="write summary and rows there")
    options = parser.parse_args(arguments)
    if options.repo is not None and not options.repo.is_dir():
        parser.error(f"--repo: {options.repo} is no folder")
    if min(options.rounds, options.edits, options.switch_files, *options.synthetic) < 1:
        parser.error("--rounds, --edits, --switch-files and --synthetic must be at least 1")
    return options


@contextmanager
def _make_scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hunk-watch-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _find_tokenizer_file(model: str, folder: Path) -> Path:
    file = folder / "tokenizer.json"
    try:
        open_tokenizer(model, ModelSettings.from_env(os.environ)).save(file)
    except HunkError as error:
        sys.exit(f"the tokenizer is that of {model}: {error}")
    return file


def _index_all(options: argparse.Namespace, sources: Sources, tokenizer_file: Path, folder: Path) -> list[Indexing]:
    if options.repo is not None:
        _say(f"indexing {options.repo}")
        return [measure_indexing(options.repo, tokenizer_file, folder / "store", options.rounds, _say)]
    found = []
    for count in options.synthetic:
        _say(f"writing {count} files")
        place = folder / f"files-{count}"
        write_repository(place, list(sources.texts(count, options.seed)))
        found.append(measure_indexing(place, tokenizer_file, folder / f"store-{count}", options.rounds, _say))
        shutil.rmtree(place)
    return found


Row = dict[str, Any]


def _make_index_rows(found: Sequence[Indexing]) -> list[Row]:
    rows: list[Row] = []
    for one in found:
        cold, ceiling, name = median(one.cold), median(one.ceiling), f"{one.num_files:,} files"
        size = f"{one.num_bytes / 1e6:.1f} MB, {one.num_tokens / 1e6:.2f} M tokens"
        rows += [
            {"what": f"{name}: cold index", "value": f"{cold:.2f} s", "of": size},
            {
                "what": "  a second",
                "value": f"{one.num_bytes / cold / 1e6:.2f} MB",
                "of": f"{one.num_tokens / cold / 1e6:.3f} M tokens",
            },
            {
                "what": "  encode_batch alone",
                "value": f"{ceiling:.2f} s",
                "of": f"{one.num_tokens / ceiling / 1e6:.3f} M tokens a second",
                "ratio": f"{one.ceiling_share:.2f} of its speed",
            },
            {"what": "  all spans, when asked for", "value": f"{one.spans:.2f} s", "of": "one thread"},
            {
                "what": f"{name}: warm start",
                "value": f"{median(one.warm):.2f} s",
                "of": "",
                "ratio": f"{cold / median(one.warm):.1f} x cold",
            },
            {"what": f"{name}: a rescan that finds nothing", "value": f"{median(one.rescan) * 1e3:.0f} ms", "of": ""},
            {"what": f"{name}: memory", "value": f"{one.mb_a_million_tokens:.1f} MB", "of": "a million tokens"},
        ]
    return rows


def _make_edit_rows(found: Sequence[Edits]) -> list[Row]:
    return [
        {
            "what": f"one-line edit in {one.num_lines:,} lines",
            "value": f"{median(one.refreshed) * 1e3:.2f} ms",
            "of": f"p99 {take_quantile(one.refreshed, 0.99) * 1e3:.2f} ms, whole {median(one.whole) * 1e3:.1f} ms, "
            f"{median(one.encoded):.0f} of {one.num_tokens:,} tokens",
            "ratio": f"{one.speedup:.0f} x whole",
        }
        for one in found
    ]


def _make_watch_rows(found: Watching) -> list[Row]:
    return [
        {
            "what": "event to snapshot, after the debounce",
            "value": f"{median(found.delays) * 1e3:.1f} ms",
            "of": f"p99 {take_quantile(found.delays, 0.99) * 1e3:.1f} ms",
        },
        {
            "what": f"branch switch, {found.switch_files:,} files",
            "value": f"{median(found.switch_seconds):.2f} s",
            "of": f"after the checkout, which took {median(found.checkout_seconds):.2f} s",
        },
    ]


def summarise(indexed: Sequence[Indexing], edits: Sequence[Edits], watching: Watching) -> dict[str, Any]:
    """The figures by the names of the interface; of several repositories, those of the largest."""
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
        "event_p99_ms": take_quantile(watching.delays, 0.99) * 1e3,
        "switch_seconds": median(watching.switch_seconds),
    }
    for one in edits:
        summary[f"edit_speedup_{one.num_lines}_lines"] = one.speedup
        summary[f"edit_p50_ms_{one.num_lines}_lines"] = median(one.refreshed) * 1e3
        summary[f"edit_p99_ms_{one.num_lines}_lines"] = take_quantile(one.refreshed, 0.99) * 1e3
    return summary


def render_table(rows: Sequence[Row]) -> str:
    """The rows, in columns."""
    width = max(len(row["what"]) for row in rows)
    return "\n".join(
        f"{row['what']:<{width}}  {row['value']:>10}  {row.get('ratio', ''):<20} {row['of']}".rstrip() for row in rows
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
