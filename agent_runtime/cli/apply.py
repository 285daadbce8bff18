"""`hunk apply`: one edit of one file, in this process or through a service."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from agent_runtime.apply import Applier
from agent_runtime.cli.render import print_refusal, print_result
from agent_runtime.client import Client
from agent_runtime.errors import BadFile, BadRequest, EditRefused, HunkError
from agent_runtime.limits import MAX_EDIT_BYTES, check_size, read_file
from agent_runtime.models.progress import for_console
from agent_runtime.models.settings import DEFAULT_MODEL, Dtype, LoadOptions, ModelSettings
from agent_runtime.shapes import problem_of, result_to_json
from agent_runtime.types import ApplyRequest, ApplyResult, Draft, Merger, Mode, StepHook
from agent_runtime.writer import replace_file

REFUSED = EditRefused.exit_code
"""The exit code of a merge that a check rejected, as of an edit that was refused."""

STDIN = Path("-")


def apply_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to edit.")],
    edit: Annotated[Path, typer.Option("--edit", metavar="EDIT", help="A file with the edit; - is standard input.")],
    write: Annotated[bool, typer.Option("--write", help="Write the merged file; nothing is written without.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
    format: Annotated[  # noqa: A002 -- the interface's name
        Literal["auto", "lazy", "search_replace"], typer.Option("--format", help="How the edit is written.")
    ] = "auto",
    mode: Annotated[
        Mode, typer.Option("--mode", help="Who may merge: rules first, rules only, or the model.")
    ] = "auto",
    instruction: Annotated[str, typer.Option("--instruction", help="What the edit is for, in words.")] = "",
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help=f"A catalogue name or path. [{DEFAULT_MODEL}]")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Ask the service there instead.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, max=10.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Makes sampling repeatable.")] = 0,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="The longest answer.")] = None,
    draft: Annotated[Draft, typer.Option("--draft", help="`none` decodes plainly, for comparison.")] = "copy",
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of the weights; float32 is slow and exact.")] = "bfloat16",
) -> None:
    """Merge an edit into a file and show the difference.

    Ends with 0 (also where there is nothing to do), 2 for bad input, 3 where the edit is refused, 4 where the model
    cannot be had, 5 where the service does not answer.
    """
    with _faults_as_json(as_json):
        request = ApplyRequest(
            original=read_file(file),
            edit=_read_edit(edit),
            path=_printable(str(file)),
            format=format,
            instruction=_printable(instruction),
            mode=mode,
            temperature=temperature,
            seed=seed,
            max_tokens=max_tokens,
            draft=draft,
        )
        result = _apply_remotely(url, request, model) if url else _apply_here(request, model or DEFAULT_MODEL, dtype)
        if write and result.status == "merged":
            data = result.file.merged.encode("utf-8")
            replace_file(file, data, expected_sha256=result.file.sha256_before)
    if as_json:
        typer.echo(json.dumps(result_to_json(result)))
    else:
        print_result(result, Console(highlight=False), written=write)
    if result.status == "rejected":
        raise typer.Exit(REFUSED)


def _printable(argument: str) -> str:
    """An argument whose bytes were not UTF-8, as text that can be printed and sent."""
    return os.fsencode(argument).decode("utf-8", errors="replace")


def _apply_remotely(url: str, request: ApplyRequest, model: str | None) -> ApplyResult:
    try:
        request.original.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(
            f"{request.path} is not UTF-8 text (byte {error.start}); only UTF-8 files can be edited"
        ) from None
    with Client(url) as client:
        return client.apply(request, model=model)


def _apply_here(request: ApplyRequest, model: str, dtype: Dtype) -> ApplyResult:
    console = Console(stderr=True, highlight=False)

    def open_merger() -> Merger:
        from agent_runtime.wiring import open_merger  # torch takes a second to import, and most edits need no model

        with console.status(f"loading {model}"):
            settings = ModelSettings.from_env(os.environ)
            return open_merger(model, settings, LoadOptions(dtype), for_console(console))

    with _step_counter(console) as on_step:
        return Applier(open_merger).apply(request, on_step)


@contextmanager
def _step_counter(console: Console) -> Iterator[StepHook]:
    """A line on the terminal that counts what the model writes."""

    def on_step(num_tokens: int) -> None:
        if console.is_terminal:
            console.print(f"\r{num_tokens} tokens written", end="", style="dim")

    try:
        yield on_step
    finally:
        if console.is_terminal:
            console.print("\r" + " " * 30 + "\r", end="")


def _read_edit(path: Path) -> str:
    if path == STDIN:
        data = sys.stdin.buffer.read(MAX_EDIT_BYTES + 1)
        check_size(len(data), "the edit on standard input", MAX_EDIT_BYTES)
    else:
        data = read_file(path)
        check_size(len(data), str(path), MAX_EDIT_BYTES)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"the edit is not UTF-8 text (byte {error.start}); save it as UTF-8", field="edit") from None


@contextmanager
def _faults_as_json(as_json: bool) -> Iterator[None]:
    """With --json a fault is printed as problem details too; the line on standard error stays."""
    try:
        yield
    except HunkError as fault:
        if as_json:
            typer.echo(json.dumps(problem_of(fault)))
        elif isinstance(fault, EditRefused):
            print_refusal(fault, Console(stderr=True, highlight=False))
            raise typer.Exit(fault.exit_code) from None
        raise
