"""Loads a model's files as the options say. Needs torch (the extra `model`); `agent_runtime.wiring` imports it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from agent_runtime.errors import BadRequest
from agent_runtime.models.config import DEFAULT_SPAN_GIB, NO_MODEL, LoadOptions, ModelSettings, read_tier_key
from agent_runtime.models.loader import LoadedModel, load_model
from agent_runtime.models.progress import Progress
from agent_runtime.models.store import ModelFiles, ModelStore, load_cache_key, resolve
from agent_runtime.process import count_cores
from engine.device import resolve_device
from engine.engine_config import EngineConfig
from engine.errors import DeviceError
from engine.reuse.idle_queue import AuditConfig
from engine.scheduler import SchedulerConfig

AUDIT_SHARE = 0.02
"""Share of the approximate answers that are compared with exact ones in idle time."""


def load_files(files: ModelFiles, settings: ModelSettings, options: LoadOptions, progress: Progress) -> LoadedModel:
    """Load a model's files; raises ModelUnavailable or a subclass, BadRequest where options clash."""
    if settings.prompt_form is not None:
        files = replace(files, prompt_form=settings.prompt_form)
    torch.set_num_threads(count_cores())  # by default torch leaves hyper-threads idle
    loaded = load_model(
        files,
        settings.cache_dir,
        dtype=options.dtype,
        limits=make_engine_config(options, settings.cache_dir),
        adapter=options.adapter,
        quantize=options.quantize,
        kv_int8=options.kv_dtype == "int8",
        device=find_device(options),
        draft=find_draft_files(settings, options, progress),
        tensor_parallel=options.tensor_parallel,
    )
    precision, memory = loaded.engine.model.precision, f"peak memory {loaded.peak_bytes / 1e9:.1f} GB"
    device = "" if options.device == "cpu" else f"{options.device}, "
    progress.report(f"{loaded.name} loaded in {loaded.load_seconds:.1f} s ({device}{precision.describe()}, {memory})")
    progress.report(f"precision: {precision.reason}")
    if loaded.draft_model is not None:
        progress.report(f"drafts: {options.draft_model} ({loaded.draft_model.describe()})")
    return loaded


def find_draft_files(settings: ModelSettings, options: LoadOptions, progress: Progress) -> ModelFiles | None:
    """Return the files of the draft model, if there is one; raises what `resolve` raises."""
    name = options.draft_model
    return None if name is None or name == NO_MODEL else resolve(name, ModelStore(settings.cache_dir), progress)


def find_device(options: LoadOptions) -> torch.device:
    """Return the device; raises BadRequest if it does not exist or does not support the other options."""
    try:
        device = resolve_device(options.device)
    except DeviceError as error:
        raise BadRequest(str(error), field="device") from error
    if device.type == "cuda" and options.tensor_parallel > max(1, torch.cuda.device_count()):
        have = torch.cuda.device_count()
        raise BadRequest(
            f"--tensor-parallel {options.tensor_parallel} needs as many cards; there are {have}",
            field="tensor_parallel",
        )
    made_for = {"int8": "cpu", "int4": "cpu", "fp8": "cuda"}.get(options.quantize, device.type)
    if device.type != made_for:
        kind = "CPUs" if made_for == "cpu" else "cards"
        raise BadRequest(
            f"quantize is {options.quantize!r}, which is for {kind}, and the device is {options.device}; leave one out",
            field="quantize",
        )
    return device


CARD_LIMITS = {"max_batched_tokens": 4096, "prefill_beside_decodes": 1024}
"""Limits of the scheduler on a card, which is filled by more rows than a CPU."""


def make_engine_config(options: LoadOptions, cache_dir: Path) -> EngineConfig:
    """Return the engine's configuration; raises BadRequest for sizes that are not possible."""
    disk = options.span_disk_gib > 0
    span_gib = options.span_gib or (DEFAULT_SPAN_GIB if disk else 0.0)
    if options.tensor_parallel > 1:  # ranks keep no spans
        disk, span_gib = False, 0.0
    try:
        return EngineConfig(
            options.context,
            None if options.kv_gib is None else _to_bytes(options.kv_gib),
            scheduler=_make_scheduler_config(options),
            kv_sequences=options.kv_sequences,
            kv_share=options.kv_share if options.tensor_parallel == 1 else None,
            pass_times_dir=cache_dir / "pass-times",
            batch_invariant=options.batch_invariant,
            span_bytes=_to_bytes(span_gib),
            idle_rebuild=span_gib > 0,
            audit=AuditConfig(share=AUDIT_SHARE if span_gib > 0 else 0.0),
            span_dir=cache_dir / "spans" if disk else None,
            span_key=load_cache_key(cache_dir) if disk else b"",
            span_disk_bytes=max(1, _to_bytes(options.span_disk_gib)),
            kernels_dir=cache_dir / "kernels",
            tier_url=options.kv_tier or "",
            tier_key=read_tier_key(options),
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
