"""Prints results, refusals and faults, for a person or as JSON."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from agent_runtime.certainty import format_percent
from agent_runtime.errors import EditRefused, HunkError, ModelUnavailable
from agent_runtime.serialization import problem_to_json
from agent_runtime.types import ApplyResult, FileResult, GivenScope, Reading, Reason, Usage
from editor.errors import format_list, format_span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DIFF_STYLES = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}
MAX_READING_LINES = 8
"""Lines shown of the diff of one reading; the JSON has all."""

MAX_REFUSED_FILES = 5


def print_remarks(result: ApplyResult, console: Console | None, where: str) -> None:
    """Print how each file was merged and its failed checks; `where` says where the merged text went.

    Without a console, plain lines go to standard error, and rich, which takes 25 ms, is not imported.
    """
    for line in _build_remarks(result, where):
        if console is None:
            typer.echo("".join(text for text, _ in line), err=True)
        else:
            from rich.text import Text

            console.print(Text.assemble(*line), soft_wrap=True)


def _build_remarks(result: ApplyResult, where: str) -> Iterator[list[tuple[str, str]]]:
    """Yield lines as texts with styles."""
    several = len(result.files) > 1
    for file in result.files:
        named, destination = (f"{_format_name(file)}: ", "") if several else ("", where)
        yield [(named, "bold"), _format_headline(file, destination)]
        for check in file.checks:
            if not check.ok:
                yield [(f"  {check.name}: {check.detail}", "red" if file.status == "rejected" else "yellow")]
        if file.repaired:
            lines = format_list(
                "repaired: the file's own lines stand for", [line.text.strip() for line in file.repaired]
            )
            yield [(f"  {lines}", "yellow")]
        if file.scope is not None:
            yield [(f"  {_describe_scope(file.scope)}", "dim")]
    if any(file.method == "model" for file in result.files):
        yield [(f"  {_format_cost(result)}", "dim")]
    if several:
        yield [(_summarize(result, where), "bold")]


def open_console(*, stderr: bool) -> Console | None:
    """Return a console for a terminal, None for a pipe or a file, which get plain text."""
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty() and not os.environ.get("FORCE_COLOR"):
        return None
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows below headings; the first column is never wrapped."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def print_diff(diff: str, console: Console) -> None:
    """Print a unified diff in colours."""
    for line in diff.split("\n")[:-1]:
        console.print(_style_line(line), soft_wrap=True)


def print_refusal(fault: EditRefused | ModelUnavailable, console: Console) -> None:
    """Print for each file why the edit was refused, the nearest miss, the readings, and what to send instead."""
    from rich.text import Text

    if isinstance(fault, ModelUnavailable):
        console.print(Text(f"hunk: {fault}", style="red"), soft_wrap=True)  # may contain a command to copy
        _print_prose("A model is needed because no rule decides this edit:", console)
    else:
        only = fault.reasons[0] if len(fault.reasons) == 1 else None
        _print_prose(f"hunk: {_format_reason(only, console) if only else fault}", console, "red")
    for reason in fault.reasons[:MAX_REFUSED_FILES]:
        if str(fault) != reason.reason:
            console.print()
            _print_prose(_format_reason(reason, console), console, "red")
        _print_reason(reason, console)
    left_out = len(fault.reasons) - MAX_REFUSED_FILES
    if left_out > 0:
        console.print(f"({left_out} more files; --json has the reasons of all)")


def _format_reason(reason: Reason, console: Console) -> str:
    if not reason.path or f"'{reason.path}'" in reason.reason:
        return reason.reason
    room = console.width // 2
    path = reason.path if len(reason.path) <= room else f"...{reason.path[-room:]}"
    return f"{path}: {reason.reason}"


def _print_reason(reason: Reason, console: Console) -> None:
    if reason.nearest:
        heading, _, diff = reason.nearest.partition("\n")
        console.print()
        _print_prose(heading[:1].upper() + heading[1:], console)
        _print_block(diff, console, indent=2)
    if reason.candidates:
        console.print()
        _print_prose(_format_readings_heading(reason), console)
        for number, reading in enumerate(reason.candidates, 1):
            _print_reading(number, reading, console)
    if reason.suggestion:
        if reason.nearest or reason.candidates:
            console.print()
        _print_prose(reason.suggestion, console, "bold")


def _format_readings_heading(reason: Reason) -> str:
    shown = len(reason.candidates)
    if shown == 1:
        return "It may have meant:"
    more = f", the likeliest of {reason.num_candidates}" if reason.num_candidates > shown else ""
    return f"It may have meant one of these{more}:"


def _print_reading(number: int, reading: Reading, console: Console) -> None:
    score = f"score {int(reading.score * 100) / 100:.2f}"
    sure = score if reading.confidence is None else f"{format_percent(reading.confidence)} sure"
    _print_prose(f"{number}. {reading.why} ({sure})", console, indent=2)
    lines = reading.diff.split("\n")
    _print_block("\n".join(lines[:MAX_READING_LINES]), console, indent=5)
    if len(lines) > MAX_READING_LINES:
        _print_prose(f"({len(lines) - MAX_READING_LINES} more lines)", console, "dim", indent=5)


def _print_prose(text: str, console: Console, style: str = "", *, indent: int = 0) -> None:
    """Print text with lines broken between words, never inside a path."""
    from rich.text import Text

    width, margin = max(console.width, 40), " " * indent
    for paragraph in text.split("\n"):
        for line in wrap(
            paragraph,
            width,
            initial_indent=margin,
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            console.print(Text(line, style=style), soft_wrap=True)


def _print_block(lines: str, console: Console, *, indent: int) -> None:
    """Print lines of code; on a terminal, cut them at its width, as wrapped lines of a diff are hard to read."""
    from rich.text import Text

    width = max(console.width - indent, 20)
    for line in lines.split("\n"):
        shown = _style_line(line.expandtabs(4))
        if console.is_terminal:
            shown.truncate(width, overflow="ellipsis")
        console.print((Text(" " * indent) + shown) if line.strip() else Text(), soft_wrap=True)


def _style_line(line: str) -> Text:
    from rich.text import Text

    return Text(line, style=next((style for mark, style in DIFF_STYLES.items() if line.startswith(mark)), ""))


def _format_name(file: FileResult) -> str:
    match file.action:
        case "move":
            return f"{file.path} to {file.move_to}"
        case "update":
            return file.path
        case action:
            return f"{action} {file.path}"


def _format_headline(file: FileResult, destination: str) -> tuple[str, str]:
    if file.status == "noop":
        return f"nothing to do: {file.checks[0].detail}", "bold"
    if file.status == "rejected":
        return "rejected by a check; nothing was written", "bold red"
    return "; ".join(filter(None, (f"merged {file.summary}", destination))), "bold"


def _summarize(result: ApplyResult, where: str) -> str:
    """Summarize the merge of several files in one line."""
    if result.status == "rejected":
        return "no file was written: one was rejected"
    num_changed = sum(file.status == "merged" for file in result.files)
    return f"{num_changed} of {len(result.files)} files changed; {where}" if num_changed else "no file changed"


def _describe_scope(scope: GivenScope) -> str:
    if scope.kind == "file":
        return f"the model was given the whole file, {scope.of_lines} lines"
    where = ", ".join(format_span(first - 1, last) for first, last in scope.regions)
    return f"the model was given {where} of {scope.of_lines}, and an outline of the rest"


def _format_cost(result: ApplyResult) -> str:
    usage, seconds = result.usage, result.timings["total_ms"] / 1e3
    return (
        f"{usage.prompt} prompt tokens ({_format_prompt_split(usage)}), {usage.completion} written in {usage.forwards} "
        f"forward passes, {usage.accepted} of {usage.drafted} drafted tokens accepted, {seconds:.1f} s"
    )


def _format_prompt_split(usage: Usage) -> str:
    """Format where the prompt's KV came from: cached, reused approximately, or computed."""
    if not usage.reused_approximate:
        return f"{usage.cached} cached"
    why = ", ".join(f"{count} {reason}" for reason, count in usage.recomputed_by.items() if count)
    run = f"{usage.recomputed} run" + (f": {why}" if why else "")
    return f"{usage.cached} cached, {usage.reused_approximate} reused approximately, {run}"


Result = TypeVar("Result")


def print_faults_as_json(command: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a command with a parameter `as_json`: where that is set, an error is also printed as JSON."""

    @functools.wraps(command)
    def run(**arguments: Any) -> Result:
        try:
            return command(**arguments)
        except HunkError as fault:
            if arguments["as_json"]:
                typer.echo(json.dumps(problem_to_json(fault)))
            raise

    return run
