"""The client's surface without a service: the same application, asked in this process and by no socket."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from agent_runtime.apply.applier import Applier
from agent_runtime.apply.merger import Merger
from agent_runtime.client.blocking import Client
from agent_runtime.client.in_process import InProcessTransport
from agent_runtime.client.settings import NO_RETRIES, ClientSettings, Timeouts
from agent_runtime.errors import ModelUnavailable
from agent_runtime.http.app import build_app
from agent_runtime.http.service import Service
from agent_runtime.model_merge.on_demand import ModelOnDemand
from agent_runtime.models.progress import Progress, Silent
from agent_runtime.models.settings import DEFAULT_MODEL, SMALL_SPAN_GIB, LoadOptions, MergeOptions, ModelSettings
from agent_runtime.telemetry.metering import Metering
from agent_runtime.workspaces.registry import Workspaces

logging.getLogger("hunk").addHandler(logging.NullHandler())  # a library says nothing unless it is told where

NO_LIMITS = Timeouts(connect_s=None, read_s=None, work_s=None, write_s=None, pool_s=None)


class LocalClient(Client):
    """Has edits merged and a model asked in this process: the same calls, answers and errors as over the network.

    root: the folder of the workspace `default`; others may be registered below it and below the `allowed` ones. model:
    a catalogue name or a path, loaded by the first call that needs it and freed by `close`; None: rules only.
    load, merging: how, by default as `hunk serve` does. settings: where models lie, by default as the environment says.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        model: str | None = DEFAULT_MODEL,
        allowed: Sequence[Path | str] = (),
        load: LoadOptions | None = None,
        merging: MergeOptions | None = None,
        settings: ModelSettings | None = None,
        watch: bool = True,
        progress: Progress | None = None,
    ) -> None:
        settings, progress = settings or ModelSettings.from_env(os.environ), progress or Silent()
        workspaces = Workspaces(
            None if root is None else Path(root),
            allowed=[Path(folder) for folder in allowed],
            watch=watch,
            store=settings.cache_dir / "tokens",
            journals=settings.cache_dir / "journals",
            say=progress.say,
        )

        def load_model() -> Merger:
            if model is None:
                raise ModelUnavailable("this client was made for rules only; give it a model to ask")
            from agent_runtime.wiring import model_slot  # torch takes a second to import, and most edits need no model

            options = load or LoadOptions(span_gib=SMALL_SPAN_GIB)
            return model_slot(model, settings, options, progress, merging or MergeOptions(), workspaces).load()

        self._model = ModelOnDemand(model or "none", load_model)
        self._workspaces = workspaces
        parts = Service(Applier(self._model.get), self._model, workspaces, metering=Metering(self._model.stats))
        self._connect(
            ClientSettings("http://localhost", None, NO_LIMITS, NO_RETRIES), InProcessTransport(build_app(parts))
        )

    def load(self) -> None:
        """Load the model now, which the first call that needs it would do; raises ModelUnavailable."""
        self._model.get()

    def close(self) -> None:
        """End what is under way and free the model; the client takes no more calls."""
        super().close()
        self._workspaces.close()
