"""Shared parts of the commands: settings as flags, the service's client, and sockets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agent_runtime.config import ResolvedSettings, resolve
from agent_runtime.config.settings import SETTINGS, Command, Setting
from agent_runtime.errors import BadRequest
from agent_runtime.models import config

if TYPE_CHECKING:
    from agent_runtime.client import Client

Result = TypeVar("Result")

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended: 128 + SIGINT, as in shells."""

JSON = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]

CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings in TOML, instead of the usual file; see `hunk config`.",
        show_default=False,
        rich_help_panel="Settings",
    ),
]


def complete_model(incomplete: str) -> list[str]:
    """Return the catalogue's names that begin with `incomplete`, for the shell."""
    return [name for name in config.list_names() if name.startswith(incomplete)]


def add_settings(command: Command) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator that replaces the parameter `resolved` by `--config` and a flag for each setting of `command`.

    typer is given no defaults, so that a flag that is not given leaves its setting to the environment and the file.
    """
    settings = [setting for setting in SETTINGS.values() if command in setting.commands]

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(function)
        def run(*, config: Path | None = None, **arguments: Any) -> Result:
            given = {setting.name: arguments.pop(setting.name) for setting in settings}
            flags = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in given.items()
                if value not in (None, [])
            }
            return function(**arguments, resolved=resolve(os.environ, flags, config=config))

        signature = inspect.signature(function, eval_str=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
            if parameter.name != "resolved"
        ]
        parameters = [*own, *map(_build_parameter, settings), _make_parameter("config", CONFIG)]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return decorate


def _build_parameter(setting: Setting) -> inspect.Parameter:
    is_bool = setting.base is bool
    option = typer.Option(
        f"{setting.flag}/--no-{setting.flag[2:]}" if is_bool else setting.flag,
        help=f"{setting.help} Default: {_describe_default(setting)}.",
        metavar="" if is_bool else setting.metavar,
        min=setting.least,
        max=setting.most,
        show_default=False,
        rich_help_panel=setting.group,
        autocompletion=complete_model if setting.name == "model" else None,
    )
    annotation = (list[Path] if setting.base is Path else list[str]) if setting.is_list else setting.annotation
    return _make_parameter(setting.name, Annotated[annotation | None, option])


def _make_parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _describe_default(setting: Setting) -> str:
    if setting.default is None:
        return setting.unset
    if setting.base is bool:
        return "yes" if setting.default else "no"
    if setting.is_list:
        return ", ".join(setting.default) or "none"
    return f"{setting.default:g}" if setting.base is float else str(setting.default)


def open_client(resolved: ResolvedSettings) -> Client:
    """Open a client of the service `url`; raises BadRequest that names where a wrong URL or token comes from."""
    from agent_runtime.client import Client

    try:
        return Client(resolved.values.url, token=resolved.values.token)
    except BadRequest as fault:
        name = "token" if fault.field == "token" else "url"
        _, _, wrong = str(fault).partition(" ")
        raise BadRequest(f"{resolved.origins[name]} {wrong}", field=name) from None
