"""`hunk apply`: merges an edit into one file or several, in this process or through a service."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import typer

from agent_runtime.apply.result import decode
from agent_runtime.certainty import Certainty
from agent_runtime.cli.history import run_then
from agent_runtime.cli.hunks import choose_hunks
from agent_runtime.cli.options import add_settings
from agent_runtime.cli.pipeline import open_pipeline
from agent_runtime.cli.render import open_console, print_diff, print_faults_as_json, print_refusal, print_remarks
from agent_runtime.config import ResolvedSettings
from agent_runtime.config.sources import make_history, make_model_settings
from agent_runtime.errors import BadRequest, EditRefused, ModelUnavailable
from agent_runtime.files import MAX_EDIT_BYTES, MAX_FILE_BYTES, check_size, read_file
from agent_runtime.serialization import result_to_json
from agent_runtime.types import (
    DECIDE,
    WRITE_SECONDS,
    ApplyRequest,
    ApplyResult,
    Decide,
    Draft,
    FileResult,
    Mode,
    OnConflict,
    Options,
    PatchRequest,
    ReuseName,
    ScopeName,
)
from agent_runtime.workspace.history import History
from agent_runtime.workspace.workspace import Workspace, replace_file
from editor.types import FormatName, Policy

REFUSED = EditRefused.exit_code
"""The exit code of a merge that a check rejected and of a refused edit."""

STANDARD = Path("-")
"""Stands for standard input, and for standard output."""


@print_faults_as_json
@add_settings("apply")
def apply_command(
    edit: Annotated[
        list[Path], typer.Option("--edit", "-e", metavar="EDIT", help="A file with the edit; - is standard input.")
    ],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="The file to edit, - for standard input; without it, those that the edit names."
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="Folder of the files that the edit names. [.]")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the merged files; without it, nothing is written.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="TEXT", help="A file for FILE's merged text; - is standard output."),
    ] = None,
    patch: Annotated[
        bool, typer.Option("--patch", "-p", help="Ask for each hunk whether it is taken, and write those that are.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the edit applies: print no diff, write nothing.")
    ] = False,
    then: Annotated[
        str,
        typer.Option("--then", metavar="COMMAND", help="Run this after writing; if it fails, the write is undone."),
    ] = "",
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="TEXT",
            help="A file with the text that the edit was made for, or its SHA-256 in the history; both changes are "
            "merged.",
        ),
    ] = None,
    on_conflict: Annotated[
        OnConflict,
        typer.Option("--on-conflict", help="With --base, where both change the same lines: refuse, or write markers."),
    ] = "refuse",
    stdin_filename: Annotated[
        str, typer.Option("--stdin-filename", metavar="NAME", help="Name of the text on standard input (FILE is -).")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
    format: Annotated[  # noqa: A002 -- the interface's name
        Literal["auto", FormatName], typer.Option("--format", help="How the edit is written.")
    ] = "auto",
    mode: Annotated[
        Mode, typer.Option("--mode", help="Who decides: rules, then the model where they do not; rules; the model.")
    ] = "auto",
    policy: Annotated[
        Policy, typer.Option("--policy", help="Which checks reject: all, or only those that no intended edit fails.")
    ] = "strict",
    min_certainty: Annotated[
        Certainty, typer.Option("--min-certainty", help="Refuse merges that are less certain; the most certain first.")
    ] = "model",
    instruction: Annotated[str, typer.Option("--instruction", help="The purpose of the edit, in words.")] = "",
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, max=10.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Makes sampling repeatable.")] = 0,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Maximum length of the model's answer.")
    ] = None,
    max_write_seconds: Annotated[
        float, typer.Option("--max-write-seconds", min=0.001, max=86_400.0, help="Maximum time that the model writes.")
    ] = WRITE_SECONDS,
    scope: Annotated[
        ScopeName,
        typer.Option("--scope", help="What the model sees: the regions that the edit can touch, or the whole file."),
    ] = "auto",
    decide: Annotated[
        Decide, typer.Option("--decide", help="The model chooses a reading, and writes if in doubt; or always writes.")
    ] = DECIDE,
    prediction: Annotated[
        Path | None, typer.Option("--prediction", metavar="TEXT", help="A file with the expected merged text of FILE.")
    ] = None,
    draft: Annotated[Draft, typer.Option("--draft", help="`none` decodes without a draft, for comparison.")] = "copy",
    own_model: Annotated[
        bool, typer.Option("--own-model", help="Load the model in this process, even if a service is running.")
    ] = False,
    *,
    resolved: ResolvedSettings,
) -> None:
    """Merge an edit into a file, or into the files that it names, and show the diff.

    Standard output holds the diff of a merge and nothing else, so that `git apply` can read it; if FILE is -, the
    merged text. How the merge was made, and the diff of a merge that a check rejected, go to standard error.

    An edit that needs a model is sent to a running `hunk serve` of the same user whose --root holds the file, unless
    --own-model or an option of the model is given.

    Ends with 0 (also where there is nothing to do), 2 for bad input, 3 where the edit is refused or leaves conflict
    markers, 4 where the model is not available, 5 where the service does not answer.
    """
    options = Options(
        format=format,
        instruction=_replace_undecodable(instruction),
        mode=mode,
        policy=policy,
        min_certainty=min_certainty,
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        max_write_seconds=max_write_seconds,
        draft=draft,
        scope=scope,
        decide=decide,
        reuse=_choose_reuse(resolved),
    )
    models = make_model_settings(os.environ, resolved)
    history = make_history(resolved.values, models)
    output = _choose_output(file, output, as_json=as_json, check=check)
    _check_usage(edit, file, output, as_json=as_json, write=write, patch=patch, check=check)
    if then and not ((write or patch) and history is not None):
        raise BadRequest("--then needs --write or --patch, and a history that can undo the write", field="then")
    with _print_refusals(as_json=as_json), open_pipeline(resolved, file, root, own_model=own_model) as pipeline:
        text = _read_edit(edit[0])
        if file is None:
            for name, value in (("prediction", prediction), ("base", base)):
                if value is not None:
                    raise BadRequest(f"--{name} needs a single file: give FILE", field=name)
            journals = models.cache_dir / "journals" if write or patch else None
            workspace = Workspace(root or Path(), journals, history=history)
            result = pipeline.apply_patch(PatchRequest(text, **options.options()), workspace.read_if_there)
            result = choose_hunks(result, workspace.read_if_there) if patch else result
            if (write or patch) and result.status == "merged":
                result = replace(result, written=True, write_id=workspace.write(result.files))
        elif root is None:
            data = _read_standard_input() if file == STANDARD else read_file(file)
            expected = None if prediction is None else _read_prediction(prediction)
            name = stdin_filename if file == STANDARD else _replace_undecodable(str(file))
            old = None if base is None else _read_base(base, file, history)
            request = ApplyRequest(data, text, name, expected, old, on_conflict, **options.options())
            result = pipeline.apply(request)
            result = choose_hunks(result, lambda _: data) if patch else result
            if (write or patch) and result.status == "merged":
                write_id = replace_file(
                    file, result.file.data, expected_sha256=result.file.sha256_before, history=history
                )
                result = replace(result, written=True, write_id=write_id)
        else:
            raise BadRequest("give FILE, or --root for the files that the edit names, but not both", field="root")
    if output is not None and result.status != "rejected":
        _write_output(result.file.data, output)
    if as_json:
        typer.echo(json.dumps(result_to_json(result)))
    else:
        show_diff = output != STANDARD and not (check or patch)
        where = "only checked" if check else _describe_destination(write or patch, output)
        _print_result(result, where, show_diff=show_diff)
    if result.status == "rejected" or any(each.conflicts for each in result.files):
        raise typer.Exit(REFUSED)
    if then and result.written:
        run_then(then, result.write_id, history, models.cache_dir / "journals")


def _choose_output(file: Path | None, output: Path | None, *, as_json: bool, check: bool) -> Path | None:
    """Return where the merged text goes: if FILE is standard input, by default to standard output."""
    return STANDARD if file == STANDARD and output is None and not as_json and not check else output


def _check_usage(
    edits: list[Path], file: Path | None, output: Path | None, *, as_json: bool, write: bool, patch: bool, check: bool
) -> None:
    """Raise BadRequest where options contradict each other."""
    is_standard = file == STANDARD
    faults = {
        "edit": [
            (len(edits) > 1, "--edit is given more than once; one file may hold several edits"),
            (is_standard and edits[0] == STANDARD, "FILE and --edit cannot both be standard input"),
        ],
        "check": [(check and (write or patch or output is not None), "--check writes nothing: give it alone")],
        "write": [(is_standard and write, "standard input cannot be written; the merged text is printed")],
        "patch": [
            (patch and (as_json or is_standard), "--patch writes files and asks on the terminal"),
            (
                patch and not sys.stdin.isatty(),
                "--patch asks for each hunk on standard input, which is no terminal here",
            ),
        ],
    }
    for field, found in faults.items():
        for is_wrong, fault in found:
            if is_wrong:
                raise BadRequest(fault, field=field)
    if output is not None:
        _check_output(output, file, as_json=as_json)


def _check_output(output: Path, file: Path | None, *, as_json: bool) -> None:
    """Raise BadRequest where the merged text cannot be written to `output`."""
    fault = ""
    if file is None:
        fault = "--output needs a single file, and the edit may name several: give FILE, or use --write"
    elif output == STANDARD and as_json:
        fault = "--output - and --json both use standard output: the JSON has the text as 'merged'"
    elif file != STANDARD and output.exists() and file.exists() and output.samefile(file):
        fault = f"--output names {file} itself; --write writes it"
    if fault:
        raise BadRequest(fault, field="output")


def _write_output(data: bytes, output: Path) -> None:
    """Write a merged file's bytes to standard output or to the file `output`, which is replaced."""
    if output == STANDARD:
        typer.echo(data, nl=False)
    else:
        now = sha256(read_file(output)).hexdigest() if output.exists() else ""
        replace_file(output, data, expected_sha256=now)


def _describe_destination(write: bool, output: Path | None) -> str:
    """Describe where a merged text went."""
    if output is None:
        return "written" if write else "not written; --write does"
    there = "standard output" if output == STANDARD else _replace_undecodable(str(output))
    return f"written, and put in {there}" if write else f"put in {there}"


def _print_result(result: ApplyResult, where: str, *, show_diff: bool) -> None:
    """Print the diff, always that of a rejected merge, and how the merge was made; `where` is its destination."""
    if show_diff or result.status == "rejected":
        _show_diffs(result)
    print_remarks(result, open_console(stderr=True), where)


def _show_diffs(result: ApplyResult) -> None:
    """Print the diffs: in colours on a terminal, else as bytes for `git apply`."""
    is_rejected = result.status == "rejected"
    console = open_console(stderr=is_rejected)
    for file in result.files:
        if console is not None:
            print_diff(file.diff, console)
        else:
            typer.echo(_encode_diff(file), nl=False, err=is_rejected)


def _encode_diff(file: FileResult) -> bytes:
    """Encode a diff: names in UTF-8, lines in the file's encoding (UTF-8 for UTF-16 and UTF-32)."""
    names, at, lines = file.diff.partition("\n@@ ")
    encoding = file.encoding if file.encoding in ("cp1252", "latin-1") else "utf-8"
    return names.encode() + (at + lines).encode(encoding)


def _replace_undecodable(argument: str) -> str:
    """Return an argument as text that can be printed and sent: bytes that are not UTF-8 are replaced."""
    return os.fsencode(argument).decode("utf-8", errors="replace")


def _choose_reuse(resolved: ResolvedSettings) -> ReuseName | None:
    """Return the reuse mode; None (the service's own) for a service unless the command line names one."""
    return resolved.values.reuse if resolved.has_flag("reuse") or not resolved.values.url else None


def _read_standard_input() -> bytes:
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    check_size(len(data), "the text on standard input", MAX_FILE_BYTES)
    return data


def _read_file_or_pipe(path: Path, most: int) -> bytes:
    """Return the bytes of a file, or of a pipe such as `<(git diff)`; raises BadFile or TooLarge."""
    if path.is_fifo():
        with path.open("rb") as pipe:
            data = pipe.read(most + 1)
    else:
        data = read_file(path)
    check_size(len(data), str(path), most)
    return data


def _read_edit(path: Path) -> str:
    if path == STANDARD:
        data = sys.stdin.buffer.read(MAX_EDIT_BYTES + 1)
        check_size(len(data), "the edit on standard input", MAX_EDIT_BYTES)
    else:
        data = _read_file_or_pipe(path, MAX_EDIT_BYTES)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"the edit is not UTF-8 text (byte {error.start}); save it as UTF-8", field="edit") from None


def _read_base(base: str, file: Path, history: History | None) -> bytes:
    """Return the text of a file, or the version of `file` with this SHA-256 in the history."""
    if not re.fullmatch("[0-9a-f]{64}", base):
        return _read_file_or_pipe(Path(base), MAX_FILE_BYTES)
    path = file.resolve()
    found = None if history is None else history.find_version(path.parent, path.name, base)
    if found is None:
        raise BadRequest(f"the history has no version {base[:12]} of {file}: give a file with its text", field="base")
    return found


def _read_prediction(path: Path) -> str:
    data = read_file(path)
    return data.decode(decode(data, str(path)).encoding)


@contextmanager
def _print_refusals(*, as_json: bool) -> Iterator[None]:
    """Print the reasons of a refusal in full, unless the answer is JSON, which has them."""
    try:
        yield
    except (EditRefused, ModelUnavailable) as fault:
        if as_json or not fault.reasons:
            raise
        from rich.console import Console

        print_refusal(fault, Console(stderr=True, highlight=False))
        raise typer.Exit(fault.exit_code) from None
