"""Gives a command the settings that are declared for it as flags, and hands it all settings chosen."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from agent_runtime.cli.models import complete_model
from agent_runtime.settings.choosing import choose
from agent_runtime.settings.declaration import SETTINGS
from agent_runtime.settings.setting import Command, Declared

Result = TypeVar("Result")

CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings in TOML, instead of the usual file; `hunk config` tells more.",
        show_default=False,
        rich_help_panel="Settings",
    ),
]


def takes(command: Command) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """A decorator: the function's parameter `chosen` gives way to `--config` and to a flag a setting of `command`.

    A flag that is not given is left to the other layers, so typer sees no defaults and `--help` is told them in words.
    """
    own = [each for each in SETTINGS.values() if command in each.setting.commands]

    def with_settings(function: Callable[..., Result]) -> Callable[..., Result]:
        def run(*, config: Path | None = None, **arguments: Any) -> Result:
            given = {each.name: arguments.pop(each.name) for each in own}
            flags = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in given.items()
                if value not in (None, [])
            }
            return function(**arguments, chosen=choose(os.environ, flags, config=config))

        signature = inspect.signature(function, eval_str=True)
        kept = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if name != "chosen"
        ]
        settings = [_parameter(each) for each in own]
        config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CONFIG)
        run.__signature__ = signature.replace(parameters=[*kept, *settings, config])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        return run

    return with_settings


def _parameter(each: Declared) -> inspect.Parameter:
    kind, setting = each.kind, each.setting
    whole = kind.base is int
    option = typer.Option(
        f"{each.flag}/--no-{each.flag[2:]}" if kind.base is bool else each.flag,
        help=f"{setting.help} Default: {default_words(each)}.",
        metavar="" if kind.base is bool else setting.metavar,
        min=int(setting.minimum) if whole and setting.minimum is not None else setting.minimum,
        max=int(setting.maximum) if whole and setting.maximum is not None else setting.maximum,
        show_default=False,
        rich_help_panel=setting.group,
        autocompletion=complete_model if each.name == "model" else None,
    )
    many = list[Path] | None if kind.base is Path else list[str] | None
    annotation = many if kind.many else each.annotation | None
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, option]
    )


def default_words(each: Declared) -> str:
    """The default as a person reads it."""
    if each.default is None:
        return each.setting.unset
    if each.kind.base is bool:
        return "yes" if each.default else "no"
    if each.kind.many:
        return ", ".join(each.default) or "none"
    return f"{each.default:g}" if each.kind.base is float else str(each.default)
