"""The command line without a process of its own: the same commands, a second faster."""

from __future__ import annotations

from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from agent_runtime.cli.main import app


def hunk_here(*arguments: str | Path, stdin: str = "") -> Result:
    """Run `hunk` with these arguments; a fault is `.exception`, as `main.run` would print it."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
