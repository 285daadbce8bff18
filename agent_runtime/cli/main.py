"""The command `hunk`: finds the subcommand, and prints an error as one line with an exit code."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from agent_runtime.errors import HunkError
from agent_runtime.process import set_environment
from agent_runtime.version import __version__

HELP = "Applies code edits to files, by rules or with a language model; the cost depends on the edit, not on the file."

EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 internal fault, or a limit; 2 bad usage, file or setting; "
    "3 the edit is refused; 4 the model is not available; 5 no connection; 130 interrupted."
)


class Subcommand(NamedTuple):
    """A subcommand: where its function or group is, and its line in `hunk --help`, which begins its own help."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "apply": Subcommand(
        ".apply", "apply_command", "Merge an edit into a file, or into the files that it names, and show the diff."
    ),
    "log": Subcommand(".history", "log_command", "List what Hunk has written, the newest first."),
    "undo": Subcommand(
        ".history", "undo_command", "Put the files of a write back as they were before it, all or none."
    ),
    "check": Subcommand(
        ".check",
        "check_command",
        "Refuse files with placeholders, merge conflicts or syntax errors that an edit has left in them.",
    ),
    "serve": Subcommand(
        ".serve", "serve_command", "Serve POST /apply until Ctrl-C or SIGTERM, after which running requests may finish."
    ),
    "deploy": Subcommand(
        ".deploy", "deploy_command", "Start replicas of the model in a Ray cluster, or replace those that run there."
    ),
    "mcp": Subcommand(
        ".serve",
        "mcp_command",
        "Let agents read and edit files through the Model Context Protocol: edit_file, read_file, workspace_status.",
    ),
    "watch": Subcommand(
        ".watch", "watch_command", "Tokenise the text files of a folder, and show what changes, until Ctrl-C."
    ),
    "doctor": Subcommand(
        ".doctor", "doctor_command", "Examine the installation, or two versions of a prompt as `hunk prefix` does."
    ),
    "prefix": Subcommand(".doctor", "prefix_command", "Show which byte broke the prefix of two prompts, and why."),
    "models": Subcommand(".models", "models", "See, pull, check, add and remove models."),
    "plan": Subcommand(
        ".plan",
        "plan_command",
        "Show what a model takes on a machine: memory, users that fit, and the least seconds of its passes.",
    ),
    "config": Subcommand(
        ".config", "config", "See the settings, where each value comes from, and write a file for them."
    ),
    "token": Subcommand(".token", "tokens", "Make, list and revoke the tokens of a service."),
    "bench": Subcommand(
        ".bench", "bench_command", "Run a benchmark of the checkout that this command is installed from."
    ),
    "tune": Subcommand(".bench", "tune_command", "Search the fastest constants of kernels on this machine's card."),
}
"""Subcommands by name. They are imported when they are called: all of them together take 0.6 s."""

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}

OWN_ARGUMENTS: dict[str, dict[str, Any]] = {
    "bench": {"allow_interspersed_args": False},
    "tune": {"ignore_unknown_options": True, "help_option_names": []},
}
"""Arguments after the name of a benchmark belong to the benchmark, and all of `tune` to the tuner."""


class CommandGroup(TyperGroup):
    """The command `hunk`, which imports a subcommand when it is called or completed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the subcommand itself; the help of `hunk` needs its line only."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; flags are shown without a value."""
        return _hide_values(super().get_params(ctx))


def load_command(name: str) -> Any:
    """Import a subcommand."""
    entry = COMMANDS[name]
    found = getattr(import_module(entry.module, __package__), entry.attribute)
    if isinstance(found, typer.Typer):
        return _prepare(typer.main.get_group(found))
    single = typer.Typer(add_completion=False)
    single.command(name, help=_format_help(found.__doc__), context_settings=OWN_ARGUMENTS.get(name))(found)
    return _prepare(typer.main.get_command(single))


def _prepare(command: Any) -> Any:
    """Have the flags of a command, and of those below it, shown without a value."""
    _hide_values(command.get_params(typer.Context(command, **CONTEXT)))
    for each in getattr(command, "commands", {}).values():
        _prepare(each)
    return command


def _hide_values(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _format_help(docstring: str | None) -> str:
    """Return a command's docstring as help, with one line for each paragraph."""
    return "\n\n".join(" ".join(each.split()) for each in cleandoc(docstring or "").split("\n\n"))


app = typer.Typer(
    name="hunk",
    cls=CommandGroup,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    context_settings=CONTEXT,
)


@app.callback(invoke_without_command=True)
def main(
    show_version: Annotated[
        bool, typer.Option("--version", "-V", metavar="", help="Print the version and exit.")
    ] = False,
) -> None:
    if show_version:
        typer.echo(__version__)
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
        import traceback
        from pathlib import Path

        at = traceback.extract_tb(bug.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno}"
        typer.echo(f"hunk: internal error in {where}: {type(bug).__name__}: {bug}; please report it", err=True)
        sys.exit(HunkError.exit_code)
