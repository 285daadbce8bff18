"""Which cases a benchmark runs: the flags that all of them have, a format, a sample of so many."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from benchmarks.cases import DEFAULT_CASES, SHAPES, AnyCase, Case, Loaded, PatchCase, load
from benchmarks.snippets.parts import PARTS, part_of
from editor.types import FormatName


def add_case_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of interfaces.md that say what is run, and where the result is written."""
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="a .jsonl or .jsonl.gz file, or a folder")
    parser.add_argument(
        "--case-format", choices=SHAPES, help="the shape of all records (told by their fields if not given)"
    )
    parser.add_argument("--format", choices=get_args(FormatName), help="only the cases with an edit in this format")
    parser.add_argument("--limit", type=int, help="a sample of this many cases")
    parser.add_argument("--seed", type=int, default=0, help="for the sample")
    parser.add_argument("--json", type=Path, help="write summary and rows there")


def add_part_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says which part of the real edits is run."""
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="only edits of this part (default all)")


def in_part(cases: Sequence[AnyCase], part: str) -> list[AnyCase]:
    """Return the cases of a part; only those whose repository is known are in one, and all are in "all"."""
    if part == "all":
        return list(cases)
    known = (case for case in cases if isinstance(case, Case) and case.repo)
    return [case for case in known if part_of(case.repo, case.path) == part]


def load_cases(options: argparse.Namespace) -> Loaded:
    """Read what `--cases` names; ends the program where there is no such file."""
    if not options.cases.exists():
        sys.exit(f"{options.cases}: no such file or folder; name one with --cases")
    return load(options.cases, options.case_format)


def chosen(cases: Sequence[AnyCase], format_name: FormatName | None, limit: int | None, seed: int) -> list[AnyCase]:
    """Return the cases in a format (all without one), no more than `limit` of them, drawn by the seed, in order."""
    found = list(cases)
    if format_name is not None:
        found = [case for one in cases if (case := _in_format(one, format_name)) is not None]
    if limit is None or limit >= len(found):
        return found
    kept = set(random.Random(seed).sample(range(len(found)), limit))
    return [case for at, case in enumerate(found) if at in kept]


def print_left_out(loaded: Loaded) -> None:
    """Name the records that cannot serve and the files that hold no cases."""
    for name in loaded.unusable:
        print(f"  not usable: {name}")
    folders: dict[str, list[str]] = {}
    for file in map(Path, loaded.skipped_files):
        folders.setdefault(str(file.parent), []).append(file.name)
    for folder, names in folders.items():
        print(f"  no cases in {folder}: {', '.join(names)}")


def _in_format(case: AnyCase, format_name: FormatName) -> AnyCase | None:
    """Return the case with its edit in this format, None if it has none."""
    if isinstance(case, PatchCase):
        return case if case.format == format_name else None
    if format_name == case.format:
        return replace(case, also={})
    edit = case.also.get(format_name)
    return None if edit is None else replace(case, format=format_name, edit=edit, also={})
