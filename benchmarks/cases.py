"""Recorded edits as benchmark cases: files are read, each record's shape is known by its fields.

name             fields                              becomes
aider            blocks, original, expected          SEARCH/REPLACE blocks
aider_refused    search, replace, error_shown...     one block that must be refused
session          old_text, new_text, expected        an exact replacement
session_refused  old_text, new_text, error           an exact replacement that must be refused, or does nothing
codex            patch, input, expects_rejection     a V4A patch of several files
repo             files, edit, expected               an edit of a small repository, in any format that names files
lazy             update, original, expected          a lazy snippet
lazy_service     update, original, vendor_output     a lazy snippet; final newline and blank lines are inexact
unit_test        project, test, should_apply         variety: policies of other projects, which conflict
edit_eval        instruction, input, output          variety: a lazy snippet made from the two texts"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.edit_formats import render_blocks, render_lazy, render_replacement
from benchmarks.harness import say
from editor.errors import EditSyntaxError
from editor.formats import parse_files
from editor.grammars import find_language
from editor.syntax import survey
from editor.types import FormatName

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")

TEST_WORDING = "... (omitted for brevity) ..."
"""A marker wording that only made snippets of the test part have."""
TEST_LAYOUT = "numbered"
"""A layout that only made snippets of the test part have: steps of a list, each with its fence."""

_LIST = Path(__file__).with_name("test_part.txt")


def find_part(repo: str, path: str) -> Part:
    """Tell the part of an edit by its repository (`owner/name`) and its file's path there."""
    return "test" if not _read_hashes().isdisjoint((hash_name(repo), hash_name(f"{repo}\n{path}"))) else "train"


def hash_name(name: str) -> str:
    """Return the hash that a repository, or a repository and a path with a newline between, is listed by."""
    return sha256(name.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _read_hashes() -> frozenset[str]:
    lines = _LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[0] for line in lines if line and not line.startswith("#"))


Record = Mapping[str, Any]
Expectation = Literal["text", "refusal", "nothing_to_do"]

DEFAULT_CASES = Path(__file__).resolve().parents[2] / "shared" / "data"
_GUESSES = ("x.py", "x.ts", "x.tsx", "x.java", "x.go", "x.rs", "x.json", "x.css")


@dataclass(frozen=True, slots=True)
class Case:
    """One edit of one file. `expected` is the right result; the original itself where nothing may be merged.

    `inexact` says that final newlines and spaces at line ends are not to be trusted; `variety` that the case is input
    variety and no goal. `also` holds the same edit in another format, measured apart. `style` is how the snippet is
    written; `repo` is where the file is from ("" where that is not known), and gives the part with `path` (`part_of`).
    """

    id: str
    shape: str
    format: FormatName
    path: str
    original: str
    edit: str
    expected: str
    expects: Expectation = "text"
    inexact: bool = False
    variety: bool = False
    also: Mapping[FormatName, str] = field(default_factory=dict)
    instruction: str = ""
    style: str = ""
    repo: str = ""


@dataclass(frozen=True, slots=True)
class PatchCase:
    """One edit of several files, which it names; `files` and `expected` are path -> text."""

    id: str
    shape: str
    edit: str
    files: Mapping[str, str]
    expected: Mapping[str, str]
    refused: bool
    format: FormatName = "v4a"


AnyCase = Case | PatchCase


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read: the cases, the files that hold none, and the records that cannot serve, each with its reason."""

    cases: tuple[AnyCase, ...]
    skipped_files: tuple[str, ...]
    unusable: tuple[str, ...]


def read_records(path: Path) -> Iterator[tuple[Path, list[Record]]]:
    """Yield every `.jsonl` and `.jsonl.gz` file at or below `path`, in order, with its records.

    A file that is none, or has a line that is no JSON, is yielded without records.
    """
    files = sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]
    for file in files:
        if not file.name.endswith((".jsonl", ".jsonl.gz")):
            yield file, []
            continue
        try:
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            found = [json.loads(line) for line in data.split(b"\n") if line.strip()]
        except (ValueError, OSError, EOFError) as error:
            say(f"{file} cannot be read: {error}")
            found = []
        yield file, [record for record in found if isinstance(record, dict)]


def load_cases_at(path: Path, shape: str | None = None) -> Loaded:
    """Read all cases at or below `path`; with `shape`, all records are taken to be of that shape."""
    cases: list[AnyCase] = []
    skipped: list[str] = []
    unusable: list[str] = []
    for file, found in read_records(path):
        before = len(cases)
        for number, record in enumerate(found):
            name = shape or find_shape(record)
            if name is None:
                continue
            made = _read_case(name, record, str(record.get("id") or f"{file.parent.name}/{file.stem}-{number:03}"))
            if isinstance(made, str):
                unusable.append(made)
            else:
                cases.append(made)
        if len(cases) == before:
            skipped.append(str(file))
    return Loaded(tuple(cases), tuple(skipped), tuple(unusable))


def _read_case(shape: str, record: Record, name: str) -> AnyCase | str:
    """Return the case of a record, or why it is none: recordings have holes."""
    try:
        return _READERS[shape](record, name)
    except (AttributeError, EditSyntaxError, KeyError, TypeError, ValueError) as error:
        return f"{name}: not a case of shape {shape} ({type(error).__name__}: {error})"


def find_shape(record: Record) -> str | None:
    """Return the name of the record's shape, None if it is no case."""
    for name, wanted in _FIELDS.items():
        if wanted <= record.keys():
            return name
    return None


def count_lines(case: AnyCase) -> int:
    """Return how many lines the case's file or files have."""
    texts = [case.original] if isinstance(case, Case) else list(case.files.values())
    return sum(text.count("\n") for text in texts)


def _read_aider(record: Record, name: str) -> Case:
    edit = render_blocks([(block["search"], block["replace"]) for block in record["blocks"]])
    return Case(name, "aider", "search_replace", record["path"], record["original"], edit, record["expected"])


def _read_aider_refused(record: Record, name: str) -> Case:
    edit = render_blocks([(record["search"], record["replace"])])
    original = record["original"]
    return Case(name, "aider_refused", "search_replace", record["path"], original, edit, original, "refusal")


def _read_session(record: Record, name: str) -> Case:
    old, new, original = record["old_text"], record["new_text"], record["original"]
    also: dict[FormatName, str] = {}
    if _is_whole_lines(original, old, new):
        also["search_replace"] = render_blocks([(old, new)])
    edit = render_replacement(old, new)
    return Case(name, "session", "replace", record["path"], original, edit, record["expected"], also=also)


def _read_session_refused(record: Record, name: str) -> Case | str:
    old, new, original = record["old_text"], record["new_text"], record["original"]
    edit = render_replacement(old, new)
    case = Case(name, "session_refused", "replace", record["path"], original, edit, original, "refusal")
    if old == new:
        return Case(name, case.shape, case.format, case.path, original, edit, original, "nothing_to_do")
    # PROVENANCE: the recorded state is a guess. Where the text stands there once, the tool saw another state.
    return case if original.count(old) != 1 else f"{name}: old_text stands once in a state that is only guessed"


def _read_codex(record: Record, name: str) -> PatchCase:
    return PatchCase(
        name, "codex", record["patch"], record["input"], record["expected"], bool(record["expects_rejection"])
    )


def _read_repo(record: Record, name: str) -> PatchCase:
    format_name = parse_files(record["edit"])[0].format
    files, expected = dict(record["files"]), dict(record["expected"])
    return PatchCase(name, "repo", record["edit"], files, expected, False, format_name)


def _read_lazy(record: Record, name: str) -> Case:
    path = record.get("path") or (name if "." in Path(name).name else _guess_path(record["original"]))
    original, update, expected = record["original"], record["update"], record["expected"]
    inexact = _has_stray_blanks(expected, original, update)
    return Case(
        *(name, "lazy", "lazy", path, original, update, expected),
        inexact=inexact,
        instruction=record.get("instruction") or "",
        style=record.get("style") or "",
        repo=record.get("repo") or "",
    )


def _read_lazy_service(record: Record, name: str) -> Case:
    path = record.get("path") or _guess_path(record["original"])
    expected, instruction = record["vendor_output"], record.get("instruction") or ""
    return Case(
        *(name, "lazy_service", "lazy", path, record["original"], record["update"], expected),
        inexact=True,
        instruction=instruction,
    )


def _read_unit_test(record: Record, name: str) -> Case | str:
    original, expected = record["original"], record["expected"]
    edit = record.get("edit") or render_blocks([(record["old"], record["new"])])
    test = f"{record['project']}: {record['test'].rpartition(' > ')[2]} ({name})"
    if record["should_apply"] and expected is None:
        return f"{test}: applies, but the recording does not say to what"
    expects: Expectation = "text" if record["should_apply"] else "refusal"
    right = expected if expected is not None else original
    return Case(test, "unit_test", "search_replace", "", original, edit, right, expects, variety=True)


def _read_edit_eval(record: Record, name: str) -> Case | str:
    before, after = record["input"], record["output"]
    if before == after:
        return f"{name}: input and output are equal"
    edit = render_lazy(before, after, "# ... existing code ...")
    return Case(
        *(str(record["task_id"]), "edit_eval", "lazy", "x.py", before, edit, after),
        inexact=True,
        variety=True,
        instruction=record["instruction"],
    )


def _is_whole_lines(text: str, old: str, new: str) -> bool:
    """Return whether a block of whole lines can say the same as this replacement of characters."""
    at = text.find(old)
    end = at + len(old)
    begins = at == 0 or text[at - 1] == "\n"
    ends = old.endswith("\n") or end == len(text) or text[end] == "\n"
    return at >= 0 and begins and ends and bool(new) and old.endswith("\n") == new.endswith("\n")


def _has_stray_blanks(expected: str, *sources: str) -> bool:
    """Return whether blank lines of the expected text hold spaces from nowhere: a text rebuilt from a diff has such."""
    known = {line for source in sources for line in source.split("\n")}
    return any(line and not line.strip() and line not in known for line in expected.split("\n"))


def _guess_path(text: str) -> str:
    """Return a file name with the suffix of the first grammar that reads the text without an error."""
    for name in _GUESSES:
        found = survey(text, find_language(name))
        if found is not None and not found.error_lines:
            return name
    return "x.md" if text.lstrip().startswith("#") else ""


_FIELDS: Mapping[str, frozenset[str]] = {
    "aider": frozenset({"blocks", "original", "expected"}),
    "aider_refused": frozenset({"search", "replace", "original", "error_shown_to_model"}),
    "codex": frozenset({"patch", "input", "expected", "expects_rejection"}),
    "repo": frozenset({"files", "edit", "expected"}),
    "unit_test": frozenset({"project", "test", "original", "should_apply"}),
    "session": frozenset({"old_text", "new_text", "original", "expected"}),
    "session_refused": frozenset({"old_text", "new_text", "original", "error"}),
    "lazy": frozenset({"update", "original", "expected"}),
    "lazy_service": frozenset({"update", "original", "vendor_output"}),
    "edit_eval": frozenset({"instruction", "input", "output"}),
}
_READERS: Mapping[str, Callable[[Record, str], AnyCase | str]] = {
    "aider": _read_aider,
    "aider_refused": _read_aider_refused,
    "codex": _read_codex,
    "repo": _read_repo,
    "unit_test": _read_unit_test,
    "session": _read_session,
    "session_refused": _read_session_refused,
    "lazy": _read_lazy,
    "lazy_service": _read_lazy_service,
    "edit_eval": _read_edit_eval,
}
SHAPES = tuple(_READERS)


def add_case_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of interfaces.md that say what is run, and where the result is written."""
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="a .jsonl or .jsonl.gz file, or a folder")
    parser.add_argument(
        "--case-format", choices=SHAPES, help="the shape of all records (known by their fields if not given)"
    )
    parser.add_argument("--format", choices=get_args(FormatName), help="only the cases with an edit in this format")
    parser.add_argument("--limit", type=int, help="a sample of this many cases")
    parser.add_argument("--seed", type=int, default=0, help="for the sample")


def add_part_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says which part of the real edits is run."""
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="only edits of this part (default all)")


def select_part(cases: Sequence[AnyCase], part: str) -> list[AnyCase]:
    """Return the cases of a part; only those whose repository is known are in one, and all are in "all"."""
    if part == "all":
        return list(cases)
    known = (case for case in cases if isinstance(case, Case) and case.repo)
    return [case for case in known if find_part(case.repo, case.path) == part]


def load_cases(options: argparse.Namespace) -> Loaded:
    """Read what `--cases` names; ends the program where there is no such file."""
    if not options.cases.exists():
        sys.exit(f"{options.cases}: no such file or folder; name one with --cases")
    return load_cases_at(options.cases, options.case_format)


def select_cases(
    cases: Sequence[AnyCase], format_name: FormatName | None, limit: int | None, seed: int
) -> list[AnyCase]:
    """Return the cases in a format (all without one), no more than `limit` of them, drawn by the seed, in order."""
    found = list(cases)
    if format_name is not None:
        found = [case for one in cases if (case := _convert_format(one, format_name)) is not None]
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


def _convert_format(case: AnyCase, format_name: FormatName) -> AnyCase | None:
    """Return the case with its edit in this format, None if it has none."""
    if isinstance(case, PatchCase):
        return case if case.format == format_name else None
    if format_name == case.format:
        return replace(case, also={})
    edit = case.also.get(format_name)
    return None if edit is None else replace(case, format=format_name, edit=edit, also={})
