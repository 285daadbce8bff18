"""Names that the user gives to models outside of the catalogue: `<cache>/models/added.json`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent_runtime.errors import BadRequest, CorruptModel
from agent_runtime.files import lock_folder, replace_file
from agent_runtime.models import config
from agent_runtime.prompt.forms import DEFAULT

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A GGUF file or a folder of safetensors under a name; `prompt_form` as in the catalogue."""

    name: str
    path: str
    prompt_form: str = DEFAULT.name


def list_added(cache_dir: Path) -> list[AddedModel]:
    """Return the added models by name; raises CorruptModel if the file is damaged."""
    path = _locate(cache_dir)
    try:
        return [AddedModel(**entry) for entry in json.loads(path.read_bytes())["models"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CorruptModel(f"{path} cannot be read ({error}); remove it, and add your models again") from error


def find_added(name: str, cache_dir: Path) -> AddedModel | None:
    """Return the added model of this name, None if there is none; raises as `list_added` does."""
    return next((model for model in list_added(cache_dir) if model.name == name), None)


def save_added(model: AddedModel, cache_dir: Path) -> None:
    """Add a model, in place of one with its name; raises BadRequest if the name cannot be had."""
    if not NAME.fullmatch(model.name):
        raise BadRequest(f"{model.name!r} is no name: use letters, digits, dots, dashes and underscores", field="name")
    if model.name == config.NO_MODEL or model.name in config.list_names():
        raise BadRequest(f"the name {model.name!r} is taken; choose another with --name", field="name")
    _change(cache_dir, model.name, replace(model, path=str(Path(model.path).absolute())))


def remove_added(name: str, cache_dir: Path) -> None:
    """Remove a name; the model's files stay."""
    _change(cache_dir, name, None)


def _change(cache_dir: Path, name: str, new: AddedModel | None) -> None:
    path = _locate(cache_dir)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_folder(path.parent):
        models = [model for model in list_added(cache_dir) if model.name != name] + ([] if new is None else [new])
        models.sort(key=lambda model: model.name)
        replace_file(path, json.dumps({"models": [asdict(model) for model in models]}, indent=2).encode())


def _locate(cache_dir: Path) -> Path:
    return cache_dir / "models" / "added.json"
