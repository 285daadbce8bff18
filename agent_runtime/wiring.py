"""Puts the concrete parts together; the one file that knows them all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from opentelemetry.trace import TracerProvider

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.rule_process import RULE_SECONDS, RuleProcesses
from agent_runtime.errors import BadRequest
from agent_runtime.llm.interface import ModelSlot
from agent_runtime.llm.merger import ModelMerger, warm_up
from agent_runtime.models.config import DEFAULT_SPAN_GIB, LoadOptions, MergeOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel, load_model
from agent_runtime.models.progress import Progress, SilentProgress
from agent_runtime.models.store import ModelFiles, ModelStore, load_cache_key, resolve
from agent_runtime.quotas import TenantLimits, TenantRateLimiter
from agent_runtime.server.service import Service
from agent_runtime.telemetry.metrics import Metering
from agent_runtime.workspace.registry import WorkspaceRegistry
from engine.device import resolve_device
from engine.engine_config import EngineConfig
from engine.errors import DeviceError
from engine.reuse.idle_queue import AuditConfig
from engine.scheduler import SchedulerConfig

AUDIT_SHARE = 0.02
"""Share of the approximate answers that are compared with exact ones in idle time."""


def open_model(
    name_or_path: str, settings: ModelSettings, options: LoadOptions, progress: Progress | None = None
) -> LoadedModel:
    """Find a model's files and load them; raises ModelUnavailable or a subclass, BadRequest where options clash."""
    _resolve_device(options)
    progress = progress or SilentProgress()
    files = resolve(name_or_path, ModelStore(settings.cache_dir), progress)
    progress.report(f"loading {name_or_path}")
    return _load(files, settings, options, progress)


def open_merger(
    name_or_path: str, settings: ModelSettings, options: LoadOptions, progress: Progress | None = None
) -> ModelMerger:
    """Load a model for merging; raises ModelUnavailable or a subclass."""
    return ModelMerger(open_model(name_or_path, settings, options, progress))


def make_model_slot(
    name_or_path: str,
    settings: ModelSettings,
    options: LoadOptions,
    progress: Progress,
    merging: MergeOptions,
    workspaces: WorkspaceRegistry | None = None,
) -> ModelSlot:
    """Find a model's files now (raises UnknownModel, ...), and return a slot that loads and warms it later.

    Once it is loaded, its tokenizer is used for the `workspaces`.
    """
    _resolve_device(options)  # refused at the start, not when the model is loaded
    files = resolve(name_or_path, ModelStore(settings.cache_dir), progress)

    def load() -> ModelMerger:
        loaded = _load(files, settings, options, progress)
        warm_up(loaded)
        if workspaces is not None:
            workspaces.set_tokenizer(loaded.text.tokenizer)
        return ModelMerger(loaded, merging.deadline_s, reuse=merging.reuse, files=workspaces)

    return ModelSlot(files.name, load)


def _load(files: ModelFiles, settings: ModelSettings, options: LoadOptions, progress: Progress) -> LoadedModel:
    if settings.prompt_form is not None:
        files = replace(files, prompt_form=settings.prompt_form)
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # by default torch leaves hyper-threads idle
    loaded = load_model(
        files,
        settings.cache_dir,
        dtype=options.dtype,
        limits=_make_engine_config(options, settings.cache_dir),
        adapter=options.adapter,
        quantize=options.quantize,
        device=_resolve_device(options),
    )
    precision, memory = loaded.engine.model.precision, f"peak memory {loaded.peak_bytes / 1e9:.1f} GB"
    device = "" if options.device == "cpu" else f"{options.device}, "
    progress.report(f"{loaded.name} loaded in {loaded.load_seconds:.1f} s ({device}{precision.describe()}, {memory})")
    progress.report(f"precision: {precision.reason}")
    return loaded


def _resolve_device(options: LoadOptions) -> torch.device:
    """Return the device; raises BadRequest if it does not exist or does not support the other options."""
    try:
        device = resolve_device(options.device)
    except DeviceError as error:
        raise BadRequest(str(error), field="device") from error
    if device.type != "cpu" and options.quantize not in ("auto", "none"):
        raise BadRequest(
            f"quantize is {options.quantize!r}, which is for CPUs, and the device is {options.device}; leave one out",
            field="quantize",
        )
    return device


CARD_LIMITS = {"max_batched_tokens": 4096, "prefill_beside_decodes": 1024}
"""Limits of the scheduler on a card, which is filled by more rows than a CPU."""


def _make_engine_config(options: LoadOptions, cache_dir: Path) -> EngineConfig:
    """Return the engine's configuration; raises BadRequest for sizes that are not possible."""
    disk = options.span_disk_gib > 0
    span_gib = options.span_gib or (DEFAULT_SPAN_GIB if disk else 0.0)
    try:
        return EngineConfig(
            options.context,
            None if options.kv_gib is None else _to_bytes(options.kv_gib),
            scheduler=_make_scheduler_config(options),
            kv_sequences=options.kv_sequences,
            kv_share=options.kv_share,
            pass_times_dir=cache_dir / "pass-times",
            batch_invariant=options.batch_invariant,
            span_bytes=_to_bytes(span_gib),
            idle_rebuild=span_gib > 0,
            audit=AuditConfig(share=AUDIT_SHARE if span_gib > 0 else 0.0),
            span_dir=cache_dir / "spans" if disk else None,
            span_key=load_cache_key(cache_dir) if disk else b"",
            span_disk_bytes=max(1, _to_bytes(options.span_disk_gib)),
            kernels_dir=cache_dir / "kernels",
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _make_scheduler_config(options: LoadOptions) -> SchedulerConfig:
    """Return the limits as the options have them; those that are None are larger on a card than on a CPU."""
    asked = {
        "max_batched_tokens": options.max_batched_tokens,
        "prefill_beside_decodes": options.prefill_beside_decodes,
    }
    limits = (CARD_LIMITS if options.device.startswith("cuda") else {}) | {
        name: value for name, value in asked.items() if value is not None
    }
    return SchedulerConfig(max_num_seqs=options.max_num_seqs, **limits)


def _to_bytes(gib: float) -> int:
    return int(gib * (1 << 30))


def open_workspaces(
    root: Path | None, allowed: Sequence[Path], settings: ModelSettings, progress: Progress, *, watch: bool = True
) -> WorkspaceRegistry:
    """Open the workspaces of a service: `root`, and folders that are registered below it or an `allowed` one.

    Raises BadRequest if one of these is not a folder.
    """
    store = settings.cache_dir / "tokens"
    journals = settings.cache_dir / "journals"
    return WorkspaceRegistry(root, allowed=allowed, watch=watch, store=store, journals=journals, report=progress.report)


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
        metering=Metering(slot.stats),
        tenants=TenantRateLimiter(limits or TenantLimits()),
        traces=traces,
        rule_seconds=rule_seconds,
    )
