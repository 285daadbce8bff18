"""Puts the concrete parts together; the one file that knows them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.rule_process import RULE_SECONDS, RuleProcesses
from agent_runtime.errors import ModelUnavailable
from agent_runtime.llm.interface import ModelSlot, NoModel
from agent_runtime.models.config import (
    NO_MODEL,
    LoadOptions,
    MergeOptions,
    ModelSettings,
    check_tensor_parallel,
    read_tier_key,
)
from agent_runtime.models.progress import Progress, SilentProgress
from agent_runtime.models.store import ModelStore, resolve
from agent_runtime.quotas import TenantLimits, TenantRateLimiter
from agent_runtime.server.service import Service
from agent_runtime.telemetry.metrics import Metering
from agent_runtime.workspace.history import History
from agent_runtime.workspace.registry import WorkspaceRegistry

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from agent_runtime.llm.merger import ModelMerger
    from agent_runtime.models.loader import LoadedModel

MODEL_PACKAGES = ("torch", "safetensors", "gguf")
"""Packages of the extra `model`."""


def _import_opener() -> Any:
    """Import the module that loads models; raises ModelUnavailable where the packages of a model are not installed."""
    try:
        from agent_runtime.llm import opener
    except ModuleNotFoundError as error:
        if error.name not in MODEL_PACKAGES:
            raise
        raise ModelUnavailable(
            f"a model needs {error.name}, which is not installed: `pip install 'hunk-apply[model]'`. "
            "Without a model (`none`) edits are merged by rules only"
        ) from None
    return opener


def open_model(
    name_or_path: str, settings: ModelSettings, options: LoadOptions, progress: Progress | None = None
) -> LoadedModel:
    """Find a model's files and load them; raises ModelUnavailable or a subclass, BadRequest where options clash."""
    check_tensor_parallel(options)
    read_tier_key(options)
    opener = _import_opener()
    opener.find_device(options)
    progress = progress or SilentProgress()
    files = resolve(name_or_path, ModelStore(settings.cache_dir), progress)
    progress.report(f"loading {name_or_path}")
    loaded: LoadedModel = opener.load_files(files, settings, options, progress)
    return loaded


def open_merger(
    name_or_path: str, settings: ModelSettings, options: LoadOptions, progress: Progress | None = None
) -> ModelMerger:
    """Load a model for merging; raises ModelUnavailable or a subclass."""
    if name_or_path == NO_MODEL:
        return NoModel().get()
    loaded = open_model(name_or_path, settings, options, progress)
    from agent_runtime.llm.merger import ModelMerger

    return ModelMerger(loaded)


def make_model_slot(
    name_or_path: str,
    settings: ModelSettings,
    options: LoadOptions,
    progress: Progress,
    merging: MergeOptions,
    workspaces: WorkspaceRegistry | None = None,
) -> ModelSlot:
    """Find a model's files now (raises UnknownModel, ...), and return a slot that loads and warms it later.

    Once it is loaded, its tokenizer is used for the `workspaces`. The name `none` is a slot without a model.
    """
    if name_or_path == NO_MODEL:
        return NoModel()
    check_tensor_parallel(options)
    read_tier_key(options)
    opener = _import_opener()
    opener.find_device(options)  # refused at the start, not when the model is loaded
    files = resolve(name_or_path, ModelStore(settings.cache_dir), progress)
    opener.find_draft_files(settings, options, progress)

    def load() -> ModelMerger:
        from agent_runtime.llm.merger import ModelMerger, warm_up

        loaded = opener.load_files(files, settings, options, progress)
        warm_up(loaded)
        if workspaces is not None:
            workspaces.set_tokenizer(loaded.text.tokenizer)
        return ModelMerger(loaded, merging.deadline_s, reuse=merging.reuse, files=workspaces)

    return ModelSlot(files.name, load)


def open_workspaces(
    root: Path | None,
    allowed: Sequence[Path],
    settings: ModelSettings,
    progress: Progress,
    *,
    watch: bool = True,
    history: History | None = None,
) -> WorkspaceRegistry:
    """Open the workspaces of a service: `root`, and folders that are registered below it or an `allowed` one.

    Raises BadRequest if one of these is not a folder.
    """
    store = settings.cache_dir / "tokens"
    journals = settings.cache_dir / "journals"
    return WorkspaceRegistry(
        root,
        allowed=allowed,
        watch=watch,
        store=store,
        journals=journals,
        history=history,
        report=progress.report,
    )


def build_service(
    slot: ModelSlot,
    workspaces: WorkspaceRegistry,
    *,
    limits: TenantLimits | None = None,
    traces: TracerProvider | None = None,
    deadline_s: float | None = None,
) -> Service:
    """Build the parts of the HTTP service. limits: of each tenant. traces: receives spans.

    deadline_s: the maximum time of the model for an edit, and of the rules if it is below RULE_SECONDS.
    """
    rule_seconds = min(RULE_SECONDS, deadline_s or RULE_SECONDS)
    return Service(
        Applier(slot.get, RuleProcesses(rule_seconds)),
        slot,
        workspaces,
        metering=Metering(slot.reports),
        tenants=TenantRateLimiter(limits or TenantLimits()),
        traces=traces,
        rule_seconds=rule_seconds,
    )
