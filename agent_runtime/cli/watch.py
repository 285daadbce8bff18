"""`hunk watch`: a folder's files as tokens and spans, and live what each change of them costs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agent_runtime.cli.faults import faults_as_json
from agent_runtime.cli.models import INTERRUPTED
from agent_runtime.cli.watch_view import JsonView, LineView, TableView, View
from agent_runtime.errors import BadRequest
from agent_runtime.models.model_tokenizer import open_tokenizer
from agent_runtime.models.progress import for_console
from agent_runtime.settings import choose
from agent_runtime.settings.loading import model_settings
from repo_cache.cache import RepoCache
from repo_cache.errors import RepoCacheError
from repo_cache.reading import MAX_FILE_BYTES
from repo_cache.workspace import IndexProgress


@faults_as_json
def watch_command(
    root: Annotated[Path, typer.Argument(metavar="PATH", help="The folder to watch.")] = Path(),
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "--tokenizer", metavar="MODEL", help="Whose tokenizer: a name or path. Default: the setting."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Index, say what there is, and end.")] = False,
    include: Annotated[
        list[str] | None, typer.Option("--include", metavar="PATTERN", help="Only these, as in a .gitignore.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Not these, as in a .gitignore.")
    ] = None,
    max_file_bytes: Annotated[
        int, typer.Option("--max-file-bytes", min=1, help="Larger files are skipped.")
    ] = MAX_FILE_BYTES,
    poll: Annotated[bool, typer.Option("--poll", help="Look for changes instead of being told of them.")] = False,
    keep: Annotated[bool, typer.Option("--store/--no-store", help="Keep token ids on disk for the next time.")] = True,
) -> None:
    """Tokenise the text files of a folder, and show what changes, until Ctrl-C.

    Git's ignore rules hold. Ends with 0 after --once, 2 for bad input, 4 where the tokenizer cannot be had, 130 after
    Ctrl-C.
    """
    chosen = choose(os.environ)
    settings = model_settings(os.environ, chosen)
    output = Console(highlight=False)
    view: View = JsonView() if as_json else TableView(output) if output.is_terminal and not once else LineView(output)
    try:
        tokenizer = open_tokenizer(model or chosen.values.model, settings)
        started = time.perf_counter()
        with _faults(), ExitStack() as stack:
            cache = RepoCache.open(
                root,
                tokenizer,
                watch=not once,
                store=settings.cache_dir / "tokens" if keep else None,
                include=include or (),
                exclude=exclude or (),
                max_file_bytes=max_file_bytes,
                polling=poll or None,
                progress=_Progress(stack),
            )
            stack.close()  # the bar
            stack.enter_context(cache)
            updates = stack.enter_context(cache.subscribe())
            stack.enter_context(view)
            view.indexed(cache.snapshot(), (time.perf_counter() - started) * 1e3, cache.notices)
            if not once:
                for update in updates:
                    view.updated(update)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # `hunk watch | head`: who was read to has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Progress:
    """Draws how far the indexing is, from the first it hears of it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._bar = for_console(Console(stderr=True, highlight=False))
        self._begun = False

    def __call__(self, progress: IndexProgress) -> None:
        if not self._begun:
            self._begun = True
            self._stack.enter_context(self._bar.task("indexing", progress.of_bytes))
        self._bar.at(progress.num_bytes)


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except RepoCacheError as fault:
        raise BadRequest(str(fault)) from fault
