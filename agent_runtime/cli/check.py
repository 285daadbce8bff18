"""`hunk check`: finds what an edit that went wrong leaves in files."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.apply.result import decode
from agent_runtime.cli.options import JSON
from agent_runtime.cli.render import print_faults_as_json
from agent_runtime.errors import BadFile, BadRequest, EditRefused
from agent_runtime.files import read_file
from editor import codec
from editor.errors import CodecError
from editor.grammars import find_language
from editor.placeholders import find_placeholders
from editor.syntax import survey

CONFLICT = ("<<<<<<< ", "=======", ">>>>>>> ")
"""Beginnings of the lines of a merge conflict, in order."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that an edit left in a file; the line counts from 1."""

    path: str
    line: int
    kind: str
    text: str


@print_faults_as_json
def check_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files to check; without any, those that git calls changed."),
    ] = None,
    base: Annotated[
        str, typer.Option("--base", metavar="REF", help="Only what is not in this commit counts; empty: everything.")
    ] = "HEAD",
    as_json: JSON = False,
) -> None:
    """Refuse files with placeholders, merge conflicts or syntax errors that an edit has left in them.

    What the file has in the commit --base, too, does not count. Binary files and those of unknown languages are not
    parsed. Ends with 0, 3 if there is something, 2 for a file that cannot be read.
    """
    if base.startswith("-"):  # git would take it for an option
        raise BadRequest(f"git knows no commit {base!r}; give another with --base", field="base")
    paths = files or _list_changed(base)
    found = [leftover for path in paths for leftover in find_leftovers(path, _read_base(path, base))]
    if as_json:
        typer.echo(json.dumps({"files": len(paths), "leftovers": [asdict(leftover) for leftover in found]}))
    else:
        for leftover in found:
            typer.echo(f"{leftover.path}:{leftover.line}: {leftover.kind}: {leftover.text}")
        typer.echo(f"{len(paths)} files checked, {len(found)} leftovers of edits", err=True)
    if found:
        raise typer.Exit(EditRefused.exit_code)


def find_leftovers(path: Path, before: str = "") -> Iterator[Leftover]:
    """Yield what is in a file and not in its text before; nothing for a binary file. Raises BadFile, FileMissing."""
    data = read_file(path)
    try:
        text = codec.decode(data).text
    except CodecError:
        return
    lines, old = text.split("\n"), before.split("\n")
    known = Counter(old[at].strip() for at in find_placeholders(old))
    for at in sorted(find_placeholders(lines)):
        known[lines[at].strip()] -= 1
        if known[lines[at].strip()] < 0:
            yield Leftover(str(path), at + 1, "placeholder", lines[at].strip())
    conflicts = _find_conflicts(lines)
    for at in conflicts[len(_find_conflicts(old)) :]:
        yield Leftover(str(path), at + 1, "merge conflict", lines[at])
    language = find_language(str(path))
    now, then = survey(text, language), survey(before, language) if before else None
    errors = now.error_lines if now is not None else ()
    if len(errors) > (len(then.error_lines) if then is not None else 0):
        yield Leftover(str(path), errors[0] + 1, "syntax error", lines[errors[0]].strip())


def _find_conflicts(lines: Sequence[str]) -> list[int]:
    """Return the first lines of all merge conflicts."""
    found: list[int] = []
    first, part = 0, 0
    for at, line in enumerate(lines):
        if line.startswith(CONFLICT[0]):
            first, part = at, 1
        elif part and line.startswith(CONFLICT[part]):
            part += 1
            if part == len(CONFLICT):
                found.append(first)
                part = 0
    return found


def _list_changed(base: str) -> list[Path]:
    """Return the files that differ from the commit, and new ones; raises BadRequest where git cannot say."""
    commands = (
        ["diff", "--name-only", "--diff-filter=d", "-z", *([base] if base else [])],
        ["ls-files", "--others", "--exclude-standard", "-z"],
    )
    top = _run_git("rev-parse", "--show-toplevel")
    if top is None:
        raise BadRequest("this is no git repository: name the files to check", field="files")
    found: dict[Path, None] = {}
    for command in commands:
        names = _run_git("-C", os.fsdecode(top).strip(), *command)
        if names is None:
            raise BadRequest(f"git knows no commit {base!r}; give another with --base", field="base")
        for name in os.fsdecode(names).split("\0"):
            path = Path(os.fsdecode(top).strip(), name)
            if name and path.is_file() and not path.is_symlink():
                found[Path(os.path.relpath(path))] = None
    return list(found)


def _read_base(path: Path, base: str) -> str:
    """Return the file's text in the commit, "" if it is not there or no text."""
    if not base:
        return ""
    data = _run_git("-C", str(path.parent), "show", f"{base}:./{path.name}")
    if data is None:
        return ""
    try:
        return data.decode(decode(data, str(path)).encoding).removeprefix("\ufeff").replace("\r\n", "\n")
    except (BadFile, UnicodeDecodeError):
        return ""


def _run_git(*arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
