"""`hunk deploy`, and the replicas of `hunk serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agent_runtime.cli.options import add_settings
from agent_runtime.config import ResolvedSettings
from agent_runtime.config.settings import Settings
from agent_runtime.config.sources import make_model_settings, make_service_options
from agent_runtime.errors import BadRequest
from agent_runtime.llm.interface import Merger, ModelSlot, resolve_reuse_mode
from agent_runtime.models.config import NO_MODEL, MergeOptions, ModelSettings, read_tier_key
from agent_runtime.models.progress import Progress, make_progress
from agent_runtime.models.store import ModelStore, resolve
from agent_runtime.workspace.registry import WorkspaceRegistry

if TYPE_CHECKING:
    from agent_runtime.cluster.config import ReplicaConfig


@add_settings("deploy")
def deploy_command(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write a config file for `serve deploy` instead."),
    ] = None,
    *,
    resolved: ResolvedSettings,
) -> None:
    """Start replicas of the model in a Ray cluster, or replace those that run there.

    Returns when they answer. Replaced ones finish their requests first. `hunk serve --cluster HOST:PORT` on a machine
    of the cluster then asks them; see docs/scale.md.
    """
    settings = resolved.values
    resolve_reuse_mode(settings.reuse, "exact")
    if settings.model == NO_MODEL:
        raise BadRequest("the model is `none`, which needs no replicas; name a model", field="model")
    if settings.cluster is None and output is None:
        raise BadRequest("name the cluster with --cluster HOST:PORT, or a file with --output FILE", field="cluster")
    from agent_runtime.cluster.ray_cluster import check_doors, check_installed, deploy, write_config

    check_installed()
    config = _make_config(settings, make_model_settings(os.environ, resolved))
    if output is not None:
        try:
            output.touch(mode=0o600)  # it may hold the password of --kv-tier
            output.write_text(write_config(config), encoding="utf-8")
        except OSError as error:
            raise BadRequest(f"{output} cannot be written: {error.strerror or error}", field="output") from error
        return
    assert settings.cluster is not None
    check_doors(settings.cluster, os.environ)
    progress = make_progress(Console(stderr=True, highlight=False))
    progress.report(f"starting {config.num_replicas} replicas of {config.model} in {settings.cluster}")
    deploy(settings.cluster, config)
    progress.report("the replicas answer")


def check_replicas(settings: Settings) -> None:
    """Raise BadRequest if the settings of `hunk serve` clash or the cluster is open, ModelUnavailable without Ray."""
    if settings.replicas is not None and settings.cluster is not None:
        raise BadRequest(
            "--replicas starts replicas on this machine, and those of a cluster are started by `hunk deploy`: "
            "leave --replicas out",
            field="replicas",
        )
    if (settings.replicas, settings.cluster) == (None, None):
        return
    if settings.model == NO_MODEL:
        raise BadRequest("the model is `none`, which needs no replicas; name a model", field="model")
    if settings.tensor_parallel > 1:
        raise BadRequest("--tensor-parallel is for a service without replicas; leave one out", field="tensor_parallel")
    from agent_runtime.cluster.ray_cluster import check_doors, check_installed

    check_installed()
    if settings.cluster is not None:
        check_doors(settings.cluster, os.environ)


def make_replica_slot(
    settings: Settings, models: ModelSettings, progress: Progress, workspaces: WorkspaceRegistry
) -> ModelSlot:
    """Return a slot that starts the replicas on this machine, or joins those of the cluster.

    Raises UnknownModel now. The model's tokenizer is used for the `workspaces`.
    """
    from agent_runtime.cluster.ray_cluster import open_deployed, open_local

    config = _make_config(settings, models)
    if settings.cluster is None:
        read_tier_key(config.options)
        resolve(settings.model, ModelStore(models.cache_dir), progress)

    def load() -> Merger:
        if settings.cluster is not None:
            merger = open_deployed(settings.cluster, settings.deadline)
        else:
            merger = open_local(config)
        workspaces.set_tokenizer(merger.description.text.tokenizer)
        return merger

    return ModelSlot(settings.model, load)


def _make_config(settings: Settings, models: ModelSettings) -> ReplicaConfig:
    from agent_runtime.cluster.config import ReplicaConfig

    return ReplicaConfig(
        settings.model,
        models,
        make_service_options(settings),
        MergeOptions(settings.deadline, settings.reuse),
        num_replicas=settings.replicas or 1,
        drain_s=settings.drain,
    )
