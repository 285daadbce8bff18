"""Options of model, merge and tenant limits, made from the settings."""

from __future__ import annotations

from collections.abc import Mapping

from agent_runtime.config.settings import SETTINGS, Settings
from agent_runtime.config.sources import Chosen, choose
from agent_runtime.models.config import DEFAULT_SPAN_GIB, SMALL_SPAN_GIB, LoadOptions, MergeOptions, ModelSettings
from agent_runtime.quotas import TenantLimits


def model_settings(environ: Mapping[str, str], chosen: Chosen | None = None) -> ModelSettings:
    """Where models are; raises BadRequest on a bad value. For commands without settings of their own, too."""
    values = (chosen or choose(environ)).values
    written = {
        "cache": None if values.cache is None else str(values.cache),
        "model_sources": None if values.model_sources is None else ",".join(values.model_sources),
        "prompt_form": values.prompt_form,
    }
    named = {SETTINGS[name].variable: value for name, value in written.items() if value is not None}
    return ModelSettings.from_env({**named, **environ})


def service_options(values: Settings) -> LoadOptions:
    """How a service loads its model, which other edits follow."""
    span_gib = values.span_memory
    if span_gib is None:
        span_gib = SMALL_SPAN_GIB if values.reuse == "exact" and not values.span_disk else DEFAULT_SPAN_GIB
    return LoadOptions(
        values.dtype,
        values.context,
        values.adapter,
        values.quantize,
        values.max_num_seqs,
        values.kv_gib,
        batch_invariant=values.batch_invariant,
        span_gib=span_gib,
        span_disk_gib=values.span_disk if span_gib else 0.0,
        device=values.device,
    )


def single_options(values: Settings) -> LoadOptions:
    """How a model is loaded for one edit, which no other follows."""
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


def merge_options(values: Settings) -> MergeOptions:
    """How a service's model merges."""
    return MergeOptions(values.deadline, values.reuse)


MANY = 256
"""Requests of one tenant in work at once where there may be others: of those that the service takes, a quarter."""


def tenant_limits(values: Settings, *, has_tokens: bool) -> TenantLimits:
    """What each tenant may take of a service; `has_tokens` says that there may be more than one."""
    concurrent = values.concurrent_requests
    if concurrent is None and has_tokens:
        concurrent = MANY
    return TenantLimits(values.requests_per_minute, concurrent, values.tokens_per_minute)
