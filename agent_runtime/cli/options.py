"""Shared parts of the commands: settings as flags, the service's client, and sockets."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agent_runtime.cli.models import complete_model
from agent_runtime.config.settings import SETTINGS, Command, Declared
from agent_runtime.config.sources import Chosen, choose
from agent_runtime.errors import BadRequest

if TYPE_CHECKING:
    from agent_runtime.client import Client

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


def add_settings(command: Command) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """A decorator: the function's parameter `chosen` gives way to `--config` and to a flag a setting of `command`.

    A flag that is not given is left to the other layers, so typer sees no defaults and `--help` is told them in words.
    """
    own = [each for each in SETTINGS.values() if command in each.setting.commands]

    def add_options(function: Callable[..., Result]) -> Callable[..., Result]:
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
        settings = [_build_parameter(each) for each in own]
        config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CONFIG)
        run.__signature__ = signature.replace(parameters=[*kept, *settings, config])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        return run

    return add_options


def _build_parameter(each: Declared) -> inspect.Parameter:
    kind, setting = each.kind, each.setting
    whole = kind.base is int
    option = typer.Option(
        f"{each.flag}/--no-{each.flag[2:]}" if kind.base is bool else each.flag,
        help=f"{setting.help} Default: {describe_default(each)}.",
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


def describe_default(each: Declared) -> str:
    """The default as a person reads it."""
    if each.default is None:
        return each.setting.unset
    if each.kind.base is bool:
        return "yes" if each.default else "no"
    if each.kind.many:
        return ", ".join(each.default) or "none"
    return f"{each.default:g}" if each.kind.base is float else str(each.default)


def open_client(chosen: Chosen) -> Client:
    """Of `url`, with `token`; raises BadRequest, which names the place of the one that is wrong."""
    from agent_runtime.client import Client

    try:
        return Client(chosen.values.url, token=chosen.values.token)
    except BadRequest as fault:
        name = "token" if fault.field == "token" else "url"
        _, _, wrong = str(fault).partition(" ")
        raise BadRequest(f"{chosen.origins[name]} {wrong}", field=name) from None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises BadRequest where the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from here on clients wait instead of being refused
    except OSError as error:
        raise BadRequest(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another with --port (0 takes a free one)",
            field="port",
        ) from error
    return listener


def format_url(listener: socket.socket) -> str:
    """Such as http://127.0.0.1:8311."""
    name, number = listener.getsockname()[:2]
    return f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
