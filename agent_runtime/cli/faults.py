"""What a command that was asked for JSON prints where it fails: the problem, beside the line on standard error."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from agent_runtime.errors import HunkError
from agent_runtime.shapes import problem_of

Result = TypeVar("Result")


def faults_as_json(command: Callable[..., Result]) -> Callable[..., Result]:
    """A decorator for a command with a parameter `as_json`."""

    @functools.wraps(command)
    def run(**arguments: Any) -> Result:
        try:
            return command(**arguments)
        except HunkError as fault:
            if arguments["as_json"]:
                typer.echo(json.dumps(problem_of(fault)))
            raise

    return run
