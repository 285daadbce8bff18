"""How `hunk apply` merges: in this process, by a running service of this user, or by the service of --url."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import typer

from agent_runtime.apply.pipeline import Applier
from agent_runtime.cli.options import open_client
from agent_runtime.config import ResolvedSettings
from agent_runtime.config.settings import SETTINGS
from agent_runtime.config.sources import make_model_settings, make_single_options
from agent_runtime.errors import BadRequest
from agent_runtime.llm.interface import Merger
from agent_runtime.local_services import RunningService, find_service
from agent_runtime.models.progress import LINE_EVERY_SECONDS
from agent_runtime.request_context import ProgressListener
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader

LOADING = (
    *("device", "dtype", "quantize", "kv_dtype", "draft_model", "adapter"),
    *("batch_invariant", "span_memory", "span_disk"),
)
"""Settings that apply only to a model in this process."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Applies edits in this process or through a service."""

    apply: Callable[[ApplyRequest], ApplyResult]
    apply_patch: Callable[[PatchRequest, Reader], ApplyResult]


@contextmanager
def open_pipeline(
    resolved: ResolvedSettings, file: Path | None, root: Path | None, *, own_model: bool
) -> Iterator[Pipeline]:
    """Open what merges; `file` and `root` say which running service may be asked. Raises BadRequest."""
    settings = resolved.values
    if settings.url:
        if misplaced := [SETTINGS[name].flag for name in LOADING if resolved.has_flag(name)]:
            raise BadRequest(
                f"{', '.join(misplaced)}: only for a model in this process; give it to the service of "
                f"{resolved.origins['url']} when it is started",
                field="url",
            )
        model = settings.model if resolved.has_flag("model") else None
        with open_client(resolved) as client:
            yield Pipeline(partial(client.apply, model=model), partial(client.apply_patch, model=model))
        return

    def open_merger() -> Merger:
        if not own_model and (service := _find_service(resolved, file or root or Path())) is not None:
            raise _ServiceRunningError(service)
        from rich.console import Console

        from agent_runtime.models.progress import make_progress
        from agent_runtime.wiring import open_merger  # torch takes a second to import, and most edits need no model

        console = Console(stderr=True, highlight=False)
        progress = make_progress(console)
        with console.status(f"loading {settings.model}"):
            models = make_model_settings(os.environ, resolved)
            return open_merger(settings.model, models, make_single_options(settings), progress)

    counter = TokenCounter()
    applier = Applier(cache(open_merger))
    try:
        yield Pipeline(
            _ask_running(partial(applier.apply, progress=counter), "apply"),
            _ask_running(partial(applier.apply_patch, progress=counter), "apply_patch"),
        )
    finally:
        counter.clear()


class _ServiceRunningError(Exception):
    """The edit needs a model, and a running service has it."""

    def __init__(self, service: RunningService) -> None:
        super().__init__(service.url)
        self.service = service


def _find_service(resolved: ResolvedSettings, path: Path) -> RunningService | None:
    """Return a running service that may decide about this file, None if its model must be loaded here."""
    if any(resolved.origins[name].layer != "default" for name in LOADING):
        return None
    model = None if resolved.origins["model"].layer == "default" else resolved.values.model
    return find_service(path, model)


def _ask_running(apply: Callable[..., ApplyResult], method: str) -> Callable[..., ApplyResult]:
    """Return `apply`, which sends the request to a running service where it needs a model and there is one."""

    def run(*request: Any) -> ApplyResult:
        try:
            return apply(*request)
        except _ServiceRunningError as found:
            from agent_runtime.client import Client

            service = found.service
            typer.echo(
                f"asking the running service at {service.url}, process {service.pid} (--own-model does not)", err=True
            )
            with Client(service.url, token=service.token) as client:
                answer: ApplyResult = getattr(client, method)(*request)
                return answer

    return run


class TokenCounter(ProgressListener):
    """Counts the tokens that the model writes: in one line on a terminal, elsewhere in a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._said_at = time.monotonic()
        self._is_shown = False

    def on_tokens(self, num_tokens: int) -> None:
        """Show the number of tokens written so far."""
        if self._is_terminal:
            self._is_shown = True
            typer.echo(f"\r{num_tokens} tokens written", nl=False, err=True)
        elif time.monotonic() - self._said_at >= LINE_EVERY_SECONDS:
            self._said_at = time.monotonic()
            typer.echo(f"{num_tokens} tokens written", err=True)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._is_shown:
            typer.echo("\r\x1b[2K", nl=False, err=True)
