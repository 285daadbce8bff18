"""`hunk config show | path | check | init`: the settings, where each value comes from, and a file to begin with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_runtime.cli.options import CONFIG, JSON
from agent_runtime.cli.render import print_faults_as_json
from agent_runtime.config import ResolvedSettings, resolve
from agent_runtime.config.settings import SETTINGS
from agent_runtime.config.sources import (
    find_file,
    find_unknown_variables,
    format_value,
    make_model_settings,
    render_template,
    to_json,
)
from agent_runtime.errors import BadRequest

config = typer.Typer(
    name="config",
    help="See the settings, where each value comes from, and write a file for them.\n\n"
    "A setting's value is its default, or stands in a file, in the environment (HUNK_ and its name in capitals), or on "
    "the command line; the later of these takes precedence.",
    no_args_is_help=True,
)


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in SETTINGS if name.startswith(incomplete)]


@config.command("show")
@print_faults_as_json
def show_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these settings.", autocompletion=_complete_name),
    ] = None,
    as_json: JSON = False,
    config: CONFIG = None,
) -> None:
    """Print every setting's value and where it comes from; secrets are masked."""
    resolved = resolve(os.environ, config=config)
    rows = {name: _describe_setting(name, resolved) for name in map(_check_name, names or SETTINGS)}
    if as_json:
        typer.echo(json.dumps({"file": _describe_file(resolved), "settings": rows}))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name in rows:
        origin = resolved.origins[name]
        style = "dim" if origin.layer == "default" else "bold"
        value = format_value(SETTINGS[name], getattr(resolved.values, name))
        table.add_row(Text(name, style=style), Text(value), Text(str(origin), style=style))
    Console(highlight=False).print(table)


@config.command("path")
@print_faults_as_json
def path_command(as_json: JSON = False, config: CONFIG = None) -> None:
    """Print which file is read, whether it exists or not; nothing where HUNK_CONFIG is empty."""
    path, _ = find_file(os.environ, config)
    if as_json:
        typer.echo(json.dumps({"path": path and str(path), "exists": path is not None and path.is_file()}))
    elif path is not None:
        typer.echo(str(path))


@config.command("check")
@print_faults_as_json
def check_command(as_json: JSON = False, config: CONFIG = None) -> None:
    """Check the file and the environment as every start does; ends with 2 and names the place of an error."""
    resolved = resolve(os.environ, config=config)
    make_model_settings(os.environ, resolved)
    unknown = find_unknown_variables(os.environ)
    if as_json:
        typer.echo(json.dumps({"file": _describe_file(resolved), "ok": True, "unknown_variables": unknown}))
        return
    typer.echo(f"{resolved.file.path}: fine" if resolved.file.found else "there is no file; the environment is fine")
    for name in unknown:
        typer.echo(f"{name} is no setting and is ignored")


@config.command("init")
def init_command(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to. [the file that is read]")] = None,
) -> None:
    """Write a file with every setting commented out; an existing file is never overwritten."""
    target = path or find_file(os.environ)[0]
    if target is None:
        raise BadRequest("HUNK_CONFIG is empty, so that no file is read: name FILE", field="path")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # a token may be added to it
    except FileExistsError:
        raise BadRequest(f"{target} exists already; it is left as it is", field="path") from None
    except OSError as error:
        raise BadRequest(f"cannot write {target}: {error.strerror or error}", field="path") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(render_template())
    typer.echo(str(target))


def _check_name(name: str) -> str:
    key = name.removeprefix("--").replace("-", "_")
    if key not in SETTINGS:
        raise BadRequest(f"there is no setting {name!r}; `hunk config show` lists them", field="names")
    return key


def _describe_setting(name: str, resolved: ResolvedSettings) -> dict[str, Any]:
    setting, origin = SETTINGS[name], resolved.origins[name]
    return {
        "value": to_json(setting, getattr(resolved.values, name)),
        "default": to_json(setting, setting.default),
        "from": origin.layer,
        "place": origin.place,
        "variable": setting.variable,
        "help": setting.help,
    }


def _describe_file(resolved: ResolvedSettings) -> dict[str, Any]:
    path = resolved.file.path
    return {"path": path and str(path), "exists": resolved.file.found}
