"""Recorded edits as benchmark cases: files are read, each record's shape is told by its fields.

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
edit_eval        instruction, input, output          variety: a lazy snippet made from the two texts
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.rendering import exact_replacement, lazy_snippet, search_replace_blocks
from editor.errors import EditSyntaxError
from editor.formats import parse_files
from editor.grammars import find_language
from editor.syntax import survey
from editor.types import FormatName

Record = Mapping[str, Any]
Expectation = Literal["text", "refusal", "nothing_to_do"]

CODE = "{{Code}}"
"""What a test has in the place of the code that it tests."""
DEFAULT_CASES = Path(__file__).resolve().parents[2] / "shared" / "data"
_GUESSES = ("x.py", "x.ts", "x.tsx", "x.java", "x.go", "x.rs", "x.json", "x.css")


@dataclass(frozen=True, slots=True)
class Case:
    """One edit of one file. `expected` is the right result; the original itself where nothing may be merged.

    `inexact` says that final newlines and spaces at line ends are not to be trusted; `variety` that the case is input
    variety and no goal. `also` holds the same edit in another format, measured apart. `test` is a Python program that
    passes on the right result, put where it reads `{{Code}}`. `style` is how the snippet is written; `repo` is where
    the file is from ("" where that is not known), and with `path` tells the part (`benchmarks.snippets.parts`).
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
    test: str = ""
    style: str = ""
    repo: str = ""


@dataclass(frozen=True, slots=True)
class PatchCase:
    """One edit of several files, which it names; `files` and `expected` are path -> text.

    `test_command` passes where it is run in a folder that holds the expected files.
    """

    id: str
    shape: str
    edit: str
    files: Mapping[str, str]
    expected: Mapping[str, str]
    refused: bool
    format: FormatName = "v4a"
    test_command: tuple[str, ...] = ()


AnyCase = Case | PatchCase


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read: the cases, the files that hold none, and the records that cannot serve, each with its reason."""

    cases: tuple[AnyCase, ...]
    skipped_files: tuple[str, ...]
    unusable: tuple[str, ...]


def records(path: Path) -> Iterator[tuple[Path, list[Record]]]:
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
            print(f"{file} cannot be read: {error}", file=sys.stderr)
            found = []
        yield file, [record for record in found if isinstance(record, dict)]


def load(path: Path, shape: str | None = None) -> Loaded:
    """Read all cases at or below `path`; with `shape`, all records are taken to be of that shape."""
    cases: list[AnyCase] = []
    skipped: list[str] = []
    unusable: list[str] = []
    for file, found in records(path):
        before = len(cases)
        for number, record in enumerate(found):
            name = shape or shape_of(record)
            if name is None:
                continue
            made = _made(name, record, str(record.get("id") or f"{file.parent.name}/{file.stem}-{number:03}"))
            if isinstance(made, str):
                unusable.append(made)
            else:
                cases.append(made)
        if len(cases) == before:
            skipped.append(str(file))
    return Loaded(tuple(cases), tuple(skipped), tuple(unusable))


def _made(shape: str, record: Record, name: str) -> AnyCase | str:
    """Return the case of a record, or why it is none: recordings have holes."""
    try:
        return _READERS[shape](record, name)
    except (AttributeError, EditSyntaxError, KeyError, TypeError, ValueError) as error:
        return f"{name}: not a case of shape {shape} ({type(error).__name__}: {error})"


def shape_of(record: Record) -> str | None:
    """Return the name of the record's shape, None if it is no case."""
    for name, wanted in _FIELDS.items():
        if wanted <= record.keys():
            return name
    return None


def lines_of(case: AnyCase) -> int:
    """Return how many lines the case's file or files have."""
    texts = [case.original] if isinstance(case, Case) else list(case.files.values())
    return sum(text.count("\n") for text in texts)


def _aider(record: Record, name: str) -> Case:
    edit = search_replace_blocks([(block["search"], block["replace"]) for block in record["blocks"]])
    return Case(name, "aider", "search_replace", record["path"], record["original"], edit, record["expected"])


def _aider_refused(record: Record, name: str) -> Case:
    edit = search_replace_blocks([(record["search"], record["replace"])])
    original = record["original"]
    return Case(name, "aider_refused", "search_replace", record["path"], original, edit, original, "refusal")


def _session(record: Record, name: str) -> Case:
    old, new, original = record["old_text"], record["new_text"], record["original"]
    also: dict[FormatName, str] = {}
    if _is_whole_lines(original, old, new):
        also["search_replace"] = search_replace_blocks([(old, new)])
    edit = exact_replacement(old, new)
    return Case(name, "session", "replace", record["path"], original, edit, record["expected"], also=also)


def _session_refused(record: Record, name: str) -> Case | str:
    old, new, original = record["old_text"], record["new_text"], record["original"]
    edit = exact_replacement(old, new)
    case = Case(name, "session_refused", "replace", record["path"], original, edit, original, "refusal")
    if old == new:
        return Case(name, case.shape, case.format, case.path, original, edit, original, "nothing_to_do")
    # PROVENANCE: the recorded state is a guess. Where the text stands there once, the tool saw another state.
    return case if original.count(old) != 1 else f"{name}: old_text stands once in a state that is only guessed"


def _codex(record: Record, name: str) -> PatchCase:
    return PatchCase(
        name, "codex", record["patch"], record["input"], record["expected"], bool(record["expects_rejection"])
    )


def _repo(record: Record, name: str) -> PatchCase:
    format_name = parse_files(record["edit"])[0].format
    command = tuple(map(str, record.get("test_command", ())))
    files, expected = dict(record["files"]), dict(record["expected"])
    return PatchCase(name, "repo", record["edit"], files, expected, False, format_name, command)


def _lazy(record: Record, name: str) -> Case:
    path = record.get("path") or (name if "." in Path(name).name else _likely_path(record["original"]))
    original, update, expected = record["original"], record["update"], record["expected"]
    inexact = _has_stray_blanks(expected, original, update)
    return Case(
        *(name, "lazy", "lazy", path, original, update, expected),
        inexact=inexact,
        instruction=record.get("instruction") or "",
        style=record.get("style") or "",
        repo=record.get("repo") or "",
    )


def _lazy_service(record: Record, name: str) -> Case:
    path = record.get("path") or _likely_path(record["original"])
    expected, instruction = record["vendor_output"], record.get("instruction") or ""
    return Case(
        *(name, "lazy_service", "lazy", path, record["original"], record["update"], expected),
        inexact=True,
        instruction=instruction,
    )


def _unit_test(record: Record, name: str) -> Case | str:
    original, expected = record["original"], record["expected"]
    edit = record.get("edit") or search_replace_blocks([(record["old"], record["new"])])
    test = f"{record['project']}: {record['test'].rpartition(' > ')[2]} ({name})"
    if record["should_apply"] and expected is None:
        return f"{test}: applies, but the recording does not say to what"
    expects: Expectation = "text" if record["should_apply"] else "refusal"
    right = expected if expected is not None else original
    return Case(test, "unit_test", "search_replace", "", original, edit, right, expects, variety=True)


def _edit_eval(record: Record, name: str) -> Case | str:
    before, after = record["input"], record["output"]
    if before == after:
        return f"{name}: input and output are equal"
    edit = lazy_snippet(before, after, "# ... existing code ...")
    return Case(
        *(str(record["task_id"]), "edit_eval", "lazy", "x.py", before, edit, after),
        inexact=True,
        variety=True,
        instruction=record["instruction"],
        test=_program(record.get("context") or "", record.get("test") or ""),
    )


def _program(context: str, test: str) -> str:
    """Return EditEval's test as one program: the context says where the code stands, or stands before it."""
    if not test:
        return ""
    around = context if CODE in context else f"{context}\n{CODE}"
    return f"{around}\n\n{test}\n\ncheck()\n"


def _is_whole_lines(text: str, old: str, new: str) -> bool:
    """Tell whether a block of whole lines can say the same as this replacement of characters."""
    at = text.find(old)
    end = at + len(old)
    begins = at == 0 or text[at - 1] == "\n"
    ends = old.endswith("\n") or end == len(text) or text[end] == "\n"
    return at >= 0 and begins and ends and bool(new) and old.endswith("\n") == new.endswith("\n")


def _has_stray_blanks(expected: str, *sources: str) -> bool:
    """Tell whether blank lines of the expected text hold spaces from nowhere: a text rebuilt from a diff has such."""
    known = {line for source in sources for line in source.split("\n")}
    return any(line and not line.strip() and line not in known for line in expected.split("\n"))


def _likely_path(text: str) -> str:
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
    "aider": _aider,
    "aider_refused": _aider_refused,
    "codex": _codex,
    "repo": _repo,
    "unit_test": _unit_test,
    "session": _session,
    "session_refused": _session_refused,
    "lazy": _lazy,
    "lazy_service": _lazy_service,
    "edit_eval": _edit_eval,
}
SHAPES = tuple(_READERS)
