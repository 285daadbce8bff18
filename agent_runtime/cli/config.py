"""`hunk config show | path | check | init`: which settings hold, where each comes from, and a file to begin with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_runtime.cli.options import CONFIG
from agent_runtime.cli.render import print_faults_as_json
from agent_runtime.config.options import model_settings
from agent_runtime.config.settings import SETTINGS
from agent_runtime.config.sources import Chosen, choose, commented_file, find, shown, unknown_variables, words
from agent_runtime.errors import BadRequest

config = typer.Typer(
    name="config",
    help="See the settings, where each value comes from, and write a file for them.\n\n"
    "A setting's value is its default, or stands in a file, in the environment (HUNK_ and its name in capitals), or on "
    "the command line; the later of these holds.",
    no_args_is_help=True,
)


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in SETTINGS if name.startswith(incomplete)]


JSON = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


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
    chosen = choose(os.environ, config=config)
    asked = [_check_name(name) for name in names or SETTINGS]
    if as_json:
        rows = {name: _describe_setting(name, chosen) for name in asked}
        typer.echo(json.dumps({"file": _describe_file(chosen), "settings": rows}))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    values = {name: getattr(chosen.values, name) for name in asked}
    for name in asked:
        origin = chosen.origins[name]
        style = "dim" if origin.layer == "default" else "bold"
        table.add_row(Text(name, style=style), Text(words(SETTINGS[name], values)), Text(str(origin), style=style))
    Console(highlight=False).print(table)


@config.command("path")
@print_faults_as_json
def path_command(as_json: JSON = False, config: CONFIG = None) -> None:
    """Print which file is read, whether it is there or not; nothing where HUNK_CONFIG is empty."""
    path, _ = find(os.environ, config)
    there = path is not None and path.is_file()
    if as_json:
        typer.echo(json.dumps({"path": None if path is None else str(path), "exists": there}))
    elif path is not None:
        typer.echo(str(path))


@config.command("check")
@print_faults_as_json
def check_command(as_json: JSON = False, config: CONFIG = None) -> None:
    """Read the file and the environment as a start would; ends with 2 and names the place where something is wrong."""
    chosen = choose(os.environ, config=config)
    model_settings(os.environ, chosen)
    unknown = unknown_variables(os.environ)
    if as_json:
        typer.echo(json.dumps({"file": _describe_file(chosen), "ok": True, "unknown_variables": unknown}))
        return
    typer.echo(f"{chosen.file.path}: fine" if chosen.file.found else "there is no file; the environment is fine")
    for name in unknown:
        typer.echo(f"{name} is no setting and is passed over")


@config.command("init")
def init_command(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to. [the file that is read]")] = None,
) -> None:
    """Write a file with every setting commented out; never over one that is there."""
    target = path or find(os.environ)[0]
    if target is None:
        raise BadRequest("HUNK_CONFIG is empty, so that no file is read: name FILE", field="path")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it may come to hold a token
    except FileExistsError:
        raise BadRequest(f"{target} is there already; it is left as it is", field="path") from None
    except OSError as error:
        raise BadRequest(f"cannot write {target}: {error.strerror or error}", field="path") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(commented_file())
    typer.echo(str(target))


def _check_name(name: str) -> str:
    key = name.removeprefix("--").replace("-", "_")
    if key not in SETTINGS:
        raise BadRequest(f"there is no setting {name!r}; `hunk config show` lists them", field="names")
    return key


def _describe_setting(name: str, chosen: Chosen) -> dict[str, Any]:
    each, origin = SETTINGS[name], chosen.origins[name]
    return {
        "value": shown(each, getattr(chosen.values, name)),
        "default": shown(each, each.default),
        "from": origin.layer,
        "place": origin.place,
        "variable": each.variable,
        "help": each.setting.help,
    }


def _describe_file(chosen: Chosen) -> dict[str, Any]:
    path = chosen.file.path
    return {"path": None if path is None else str(path), "exists": chosen.file.found}
