"""`hunk apply --patch`: asks on the terminal which hunks of a merge are taken, as `git add --patch` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from agent_runtime.cli.render import print_diff
from agent_runtime.types import ApplyResult, FileResult, Reader
from editor import codec
from editor.diff import LineOp, group_hunks, line_opcodes, render_unified_diff
from editor.types import Check

if TYPE_CHECKING:
    from rich.console import Console

CONTEXT = 3

HELP = """\
y - take this hunk
n - leave it out
a - take it and all later hunks of the file
d - leave it and all later hunks of the file out
q - leave it and everything after it out
? - print this help"""


def choose_hunks(result: ApplyResult, read: Reader) -> ApplyResult:
    """Ask for each hunk of a merge; return the result with the chosen ones.

    `read` returns a file's bytes before the edit. A file that is made, moved or removed is one question. What is left
    of a file without any hunk is a `noop`.
    """
    if result.status != "merged":
        return result
    from rich.console import Console

    console, files, has_quit = Console(stderr=True, highlight=False), [], False
    for file in result.files:
        if file.status == "merged":
            chosen, has_quit = _choose_of_file(file, read(file.path), console, has_quit=has_quit)
            files.append(chosen)
        else:
            files.append(file)
    return replace(result, files=tuple(file for file in files if file is not None))


def _choose_of_file(
    file: FileResult, data: bytes | None, console: Console, *, has_quit: bool
) -> tuple[FileResult | None, bool]:
    """Return the file with its chosen hunks, None if a file that is made, moved or removed is left out."""
    if file.action != "update" or data is None:
        answer = "n" if has_quit else _ask(file, file.diff, "1 of 1", console)
        return (file if answer in "ya" else None), has_quit or answer == "q"
    source = codec.decode(data)
    old, new = _split_lines(source.text), _split_lines(codec.decode(file.data).text)
    ops = line_opcodes(old, new)
    hunks = list(group_hunks(ops, CONTEXT))
    taken: list[list[LineOp]] = []
    answer = "q" if has_quit else ""
    for number, hunk in enumerate(hunks, 1):
        if answer not in ("a", "d", "q"):
            shown = "".join(_splice(old, new, [hunk]))
            diff = render_unified_diff(source.text, shown, file.path, CONTEXT)
            answer = _ask(file, diff, f"{number} of {len(hunks)}", console)
        if answer in ("y", "a"):
            taken.append(hunk)
    text = "".join(_splice(old, new, taken))
    left = replace(
        file,
        status="merged" if taken else "noop",
        merged=codec.encode(text, source, by_model=False).decode(file.encoding),
        diff=render_unified_diff(source.text, text, file.path, CONTEXT),
        checks=(Check("chosen", True, f"{len(taken)} of {len(hunks)} hunks were taken"), *file.checks),
    )
    return left, answer == "q"


def _split_lines(text: str) -> list[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _splice(old: list[str], new: list[str], taken: list[list[LineOp]]) -> Iterator[str]:
    """Yield the old lines with the changes of the taken hunks."""
    at = 0
    for hunk in taken:
        for op in hunk:
            if not op.equal:
                yield from old[at : op.a_start]
                yield from new[op.b_start : op.b_end]
                at = op.a_end
    yield from old[at:]


def _ask(file: FileResult, diff: str, which: str, console: Console) -> str:
    print_diff(diff, console)
    while True:
        answer: str = typer.prompt(f"Take this hunk of {file.path} ({which}) [y,n,a,d,q,?]", err=True).strip().lower()
        if answer in ("y", "n", "a", "d", "q"):
            return answer
        console.print(HELP, markup=False)
