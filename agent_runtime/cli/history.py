"""`hunk log` and `hunk undo`: lists what Hunk has written, and puts files back."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.cli.options import JSON
from agent_runtime.cli.render import print_faults_as_json, print_table
from agent_runtime.config.sources import make_model_settings
from agent_runtime.errors import EditRefused
from agent_runtime.workspace.history import History, Write, list_undone
from agent_runtime.workspace.undo import run_or_undo, undo_write

STANDARD_ERROR = 2

MAX_SHOWN = 3
"""Files of a write that are shown; --json has all."""

FOLDER = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Writes of files in this folder. [.]", show_default=False)
]


@print_faults_as_json
def log_command(
    root: FOLDER = Path(),
    everything: Annotated[bool, typer.Option("--all", help="Writes in all folders.")] = False,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Show this many.")] = 20,
    as_json: JSON = False,
) -> None:
    """List what Hunk has written, the newest first.

    Writes of the command, of services, MCP servers and the SDK of this user are kept for 30 days, 500 MB of them at
    most (`--history` of these commands).
    """
    history, _ = _open()
    writes = history.list_writes(None if everything else root.resolve())[:number]
    if as_json:
        typer.echo(json.dumps({"writes": [asdict(write) for write in writes]}))
    elif writes:
        undone = list_undone(history.list_writes())
        print_table(("id", "when", "files"), [_describe(write, undone) for write in writes])
    else:
        where = "" if everything else f" in {root.resolve()}; --all lists those in other folders"
        typer.echo(f"nothing was written{where}", err=True)


def _describe(write: Write, undone: set[str]) -> tuple[str, str, str]:
    at = datetime.fromtimestamp(write.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    names = [_describe_change(write, number) for number in range(min(len(write.files), MAX_SHOWN))]
    more = f", and {len(write.files) - MAX_SHOWN} more" if len(write.files) > MAX_SHOWN else ""
    remark = f" (undoes {write.undoes})" if write.undoes else " (undone)" if write.id in undone else ""
    return write.id, at, ", ".join(names) + more + remark


def _describe_change(write: Write, number: int) -> str:
    file = write.files[number]
    path = Path(write.root, file.path)
    shown = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    return ("+" if file.before is None else "-" if file.after is None else "") + shown


@print_faults_as_json
def undo_command(
    write_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A write of `hunk log`; without it, the last one in the folder."),
    ] = None,
    root: FOLDER = Path(),
    as_json: JSON = False,
) -> None:
    """Put the files of a write back as they were before it, all or none.

    It refuses if one of them has changed since. An undo is a write itself, and `hunk undo ID` undoes it.
    """
    history, journals = _open()
    write = history.find_last(root.resolve()) if write_id is None else history.find(write_id)
    done = undo_write(history, write, journals)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    for number, file in enumerate(write.files):
        verb = "removed" if file.before is None else "made again" if file.after is None else "put back"
        typer.echo(f"{verb} {_describe_change(write, number).lstrip('+-')}")


def run_then(command: str, write_id: str, history: History | None, journals: Path) -> None:
    """Run a command of the shell after a write; if it fails or is interrupted, undo the write and exit with 3 or 130.

    Its output goes to standard error. Raises Stale where it has changed a file of the write itself.
    """
    try:
        run_or_undo(command, write_id, history, journals, output=STANDARD_ERROR)
    except KeyboardInterrupt:
        if write_id:
            typer.echo(f"the write is undone: {command!r} was interrupted", err=True)
        raise
    except EditRefused as fault:
        typer.echo(str(fault), err=True)
        raise typer.Exit(EditRefused.exit_code) from None


def _open() -> tuple[History, Path]:
    folder = make_model_settings(os.environ).cache_dir
    return History(folder / "history"), folder / "journals"
