"""Puts the concrete parts together; the one file that knows them all."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from agent_runtime.apply import Applier
from agent_runtime.http.app import Service
from agent_runtime.model_merge import ModelMerger
from agent_runtime.model_slot import ModelSlot
from agent_runtime.models.load import LoadedModel, load_model
from agent_runtime.models.progress import Progress
from agent_runtime.models.resolve import resolve
from agent_runtime.models.settings import DEFAULT_CONTEXT, ModelSettings
from agent_runtime.models.store import Store
from agent_runtime.workspace import Workspace


def use_all_cores() -> None:
    """Give torch every core that this process may use; by default it leaves hyper-threads idle."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def open_model(
    name_or_path: str,
    settings: ModelSettings,
    *,
    dtype: torch.dtype = torch.bfloat16,
    context: int = DEFAULT_CONTEXT,
    progress: Progress | None = None,
) -> LoadedModel:
    """Find a model's files and load them; raises ModelUnavailable or a subclass."""
    files = resolve(name_or_path, Store(settings.cache_dir), progress)
    return load_model(files, settings.cache_dir, dtype=dtype, context=context)


def open_merger(name_or_path: str, settings: ModelSettings, *, progress: Progress | None = None) -> ModelMerger:
    """A model ready to merge on all cores; raises ModelUnavailable or a subclass."""
    use_all_cores()
    return ModelMerger(open_model(name_or_path, settings, progress=progress))


def model_slot(name_or_path: str, settings: ModelSettings, context: int, progress: Progress | None) -> ModelSlot:
    """A place for the model, which is looked for now (raising UnknownModel, ...) and loaded later."""
    files = resolve(name_or_path, Store(settings.cache_dir), progress)

    def load() -> ModelMerger:
        use_all_cores()
        return ModelMerger(load_model(files, settings.cache_dir, context=context))

    return ModelSlot(files.name, load)


def service(slot: ModelSlot, root: Path | None) -> Service:
    """The parts of the HTTP service."""
    return Service(Applier(slot.get), slot, Workspace(root) if root is not None else None)
