"""Model options made from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent_runtime.config.settings import SETTINGS, Settings
from agent_runtime.config.sources import ResolvedSettings, resolve
from agent_runtime.models.config import DEFAULT_SPAN_GIB, SMALL_SPAN_GIB, LoadOptions, ModelSettings


def model_settings(environ: Mapping[str, str], resolved: ResolvedSettings | None = None) -> ModelSettings:
    """Return where models are stored and how they are prompted; raises BadRequest on a bad value.

    Without `resolved`, for commands that take no settings as flags, they are resolved here.
    """
    values = (resolved or resolve(environ)).values
    sources = None if values.model_sources is None else ",".join(values.model_sources)
    from_file = {"cache": values.cache, "model_sources": sources, "prompt_form": values.prompt_form}
    variables = {SETTINGS[name].variable: str(value) for name, value in from_file.items() if value is not None}
    return ModelSettings.from_env({**variables, **environ})


def single_options(values: Settings) -> LoadOptions:
    """Return how to load a model for a single edit."""
    return LoadOptions(
        values.dtype,
        adapter=values.adapter,
        quantize=values.quantize,
        kv_sequences=1,
        batch_invariant=values.batch_invariant,
        span_gib=values.span_memory or 0.0,
        span_disk_gib=values.span_disk,
        device=values.device,
    )


def service_options(values: Settings) -> LoadOptions:
    """Return how a service loads its model, for many edits."""
    span_gib = values.span_memory
    if span_gib is None:
        span_gib = SMALL_SPAN_GIB if values.reuse == "exact" and not values.span_disk else DEFAULT_SPAN_GIB
    return replace(
        single_options(values),
        context=values.context,
        max_num_seqs=values.max_num_seqs,
        kv_gib=values.kv_gib,
        kv_sequences=2,
        span_gib=span_gib,
        span_disk_gib=values.span_disk if span_gib else 0.0,
    )
