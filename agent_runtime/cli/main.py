"""The command `hunk`: collects the subcommands, and prints an error as one line with an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.cli.apply import apply_command
from agent_runtime.cli.bench import bench_command
from agent_runtime.cli.config import config
from agent_runtime.cli.doctor import doctor_command
from agent_runtime.cli.models import models
from agent_runtime.cli.serve import mcp_command, serve_command
from agent_runtime.cli.token import tokens
from agent_runtime.cli.watch import watch_command
from agent_runtime.errors import HunkError
from agent_runtime.process import set_environment

HELP = "Applies code edits to files, by rules or with a language model; the cost depends on the edit, not on the file."

EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 internal fault, or a limit; 2 bad usage, file or setting; "
    "3 the edit is refused; 4 the model is not available; 5 no connection; 130 interrupted."
)

COMMANDS: dict[str, Callable[..., None]] = {
    "apply": apply_command,
    "serve": serve_command,
    "mcp": mcp_command,
    "watch": watch_command,
    "doctor": doctor_command,
    "bench": bench_command,
}

OWN_ARGUMENTS = {"bench": {"allow_interspersed_args": False}}
"""Arguments after the name of a benchmark belong to the benchmark."""


def _format_help(command: Callable[..., None]) -> str:
    """Return a command's docstring as help, with one line for each paragraph."""
    return "\n\n".join(" ".join(each.split()) for each in cleandoc(command.__doc__ or "").split("\n\n"))


app = typer.Typer(
    name="hunk",
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
)
for _name, _command in COMMANDS.items():
    app.command(_name, help=_format_help(_command), context_settings=OWN_ARGUMENTS.get(_name))(_command)
app.add_typer(models)
app.add_typer(config)
app.add_typer(tokens)


@app.callback(invoke_without_command=True)
def main(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show_version:
        typer.echo(version("hunk"))
        raise typer.Exit


def run() -> None:
    """Run the command: the entry point of the console script."""
    set_environment()
    try:
        app()
    except HunkError as fault:
        typer.echo(f"hunk: {fault}", err=True)
        sys.exit(fault.exit_code)
    except Exception as bug:  # noqa: BLE001 -- the outermost loop: a user gets a line, not a traceback
        at = traceback.extract_tb(bug.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno}"
        typer.echo(f"hunk: internal error in {where}: {type(bug).__name__}: {bug}; please report it", err=True)
        sys.exit(HunkError.exit_code)
