"""`hunk watch`: shows a folder's files as tokens and spans, and the cost of each change."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent_runtime.cli.options import INTERRUPTED
from agent_runtime.cli.render import print_faults_as_json
from agent_runtime.config import resolve
from agent_runtime.config.sources import make_model_settings
from agent_runtime.errors import BadRequest
from agent_runtime.models.progress import make_progress
from agent_runtime.models.tokenizer import open_tokenizer
from repo_cache.cache import RepoCache
from repo_cache.errors import RepoCacheError
from repo_cache.files import MAX_FILE_BYTES
from repo_cache.indexer import IndexProgress
from repo_cache.snapshot import Snapshot
from repo_cache.spans import SpanChanges
from repo_cache.subscriptions import Update
from repo_cache.types import FileChange, Notice

MAX_FILES = 100
"""Maximum files of an update that are shown with spans: a branch switch changes thousands, and each needs a parse."""

MAX_NOTICES = 3
KIND_STYLES = {"added": "green", "removed": "red", "modified": "yellow", "renamed": "cyan"}


class View(AbstractContextManager["View"]):
    """Shows the index and its updates."""

    def on_index(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        """Show the indexed folder."""

    def on_update(self, update: Update) -> None:
        """Show changed files and notices."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class JsonView(View):
    """Prints one JSON object a line; its `event` is `index`, `change` or `notice`."""

    def on_index(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        _print_json(
            event="index",
            root=str(snapshot.root),
            files=len(snapshot),
            tokens=snapshot.num_tokens,
            milliseconds=round(milliseconds, 3),
            skipped=dict(snapshot.skipped),
        )
        for notice in notices:
            _print_json(event="notice", kind=notice.kind, message=notice.message)

    def on_update(self, update: Update) -> None:
        for notice in update.notices:
            _print_json(event="notice", kind=notice.kind, message=notice.message)
        with_spans = len(update.changes) <= MAX_FILES
        for change in update.changes:
            after = change.after
            _print_json(
                event="change",
                version=update.snapshot.version,
                path=change.path,
                kind=change.kind,
                old_path=change.old_path,
                sha256=after.content_hash if after is not None else None,
                spans=_count_spans(change.spans) if with_spans else None,
                tokens=len(after) if after is not None else 0,
                tokens_encoded=update.encoded.get(change.path, 0),
                milliseconds=round(update.milliseconds, 3),
            )


class LineView(View):
    """Prints plain lines, for a log or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_index(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        self._print_line(_format_headline(snapshot, milliseconds))
        for notice in notices:
            self._print_line(notice.message)

    def on_update(self, update: Update) -> None:
        for notice in update.notices:
            self._print_line(notice.message)
        for row in _build_rows(update):
            self._print_line("  ".join(cell for cell in (row.kind, row.path, row.spans, row.tokens, row.time) if cell))

    def _print_line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class TableView(View):
    """Draws a table of the newest changes on the terminal, below a summary of the folder."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._rows: deque[_Row] = deque(maxlen=200)
        self._notices: deque[str] = deque(maxlen=MAX_NOTICES)
        self._snapshot: Snapshot | None = None
        self._index_ms = 0.0

    def on_index(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        self._snapshot, self._index_ms = snapshot, milliseconds
        self._notices.extend(notice.message for notice in notices)
        self._live.start()
        self._draw()

    def on_update(self, update: Update) -> None:
        self._snapshot = update.snapshot
        self._notices.extend(notice.message for notice in update.notices)
        self._rows.extend(_build_rows(update))
        self._draw()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _draw(self) -> None:
        assert self._snapshot is not None
        table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        table.add_column("file", overflow="ellipsis", no_wrap=True, ratio=1)
        table.add_column("what")
        table.add_column("spans", no_wrap=True)
        table.add_column("tokens encoded", justify="right", no_wrap=True)
        table.add_column("time", justify="right", no_wrap=True)
        head = [Text(_format_headline(self._snapshot, self._index_ms), style="bold")]
        head += [Text(text, style="yellow") for text in self._notices]
        room = max(self._console.height - len(head) - len(self._notices) - 4, 3)
        for row in list(self._rows)[-room:]:
            kind = Text(row.kind, style=KIND_STYLES.get(row.kind, ""))
            table.add_row(Text(row.path), kind, row.spans, row.tokens, row.time)
        waiting = () if self._rows else (Text("nothing has changed yet; Ctrl-C ends", style="dim"),)
        self._live.update(Group(*head, Text(), table, *waiting), refresh=True)


@dataclass(frozen=True, slots=True)
class _Row:
    path: str
    kind: str
    spans: str = ""
    tokens: str = ""
    time: str = ""


def _build_rows(update: Update) -> Iterator[_Row]:
    """Build a row for each file; the first row has the time of the whole update."""
    changes = update.changes.files
    took = _format_duration(update.milliseconds)
    if len(changes) > MAX_FILES:
        kinds = Counter(change.kind for change in changes)
        total = sum(len(change.after) for change in changes if change.after is not None)
        what = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
        yield _Row(f"{len(changes):,} files: {what}", "", "", f"{update.num_encoded:,} of {total:,}", took)
        return
    for number, change in enumerate(changes):
        path = f"{change.old_path} → {change.path}" if change.old_path is not None else change.path
        tokens = f"{update.encoded.get(change.path, 0):,} of {len(change.after):,}" if change.after is not None else ""
        yield _Row(_escape_unprintable(path), change.kind, _format_spans(change), tokens, "" if number else took)


def _format_spans(change: FileChange) -> str:
    if change.kind == "removed":
        return ""
    counts = _count_spans(change.spans)
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "none"


def _count_spans(spans: SpanChanges) -> dict[str, int]:
    return {
        "kept": spans.num_kept,
        "moved": len(spans.moved),
        "changed": len(spans.changed),
        "new": len(spans.new),
        "removed": len(spans.removed),
    }


def _format_headline(snapshot: Snapshot, milliseconds: float) -> str:
    skipped = Counter(snapshot.skipped.values())
    files = "file" if len(snapshot) == 1 else "files"
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in skipped.most_common(3))
    left_out = f", {len(snapshot.skipped):,} skipped ({reasons})" if skipped else ""
    root = _escape_unprintable(str(snapshot.root))
    return (
        f"{root}: {len(snapshot):,} {files}, {snapshot.num_tokens:,} tokens{left_out}, "
        f"indexed in {_format_duration(milliseconds)}"
    )


def _escape_unprintable(path: str) -> str:
    """Escape unprintable characters: a file's name may hold a terminal's control sequences."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in path)


def _format_duration(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:,.1f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"


def _print_json(**fields: Any) -> None:
    typer.echo(json.dumps(fields))  # typer flushes each line


@print_faults_as_json
def watch_command(
    root: Annotated[Path, typer.Argument(metavar="PATH", help="The folder to watch.")] = Path(),
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--tokenizer",
            metavar="MODEL",
            help="Model with the tokenizer: a name or path. Default: the setting.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Index the folder, print a summary, and exit.")] = False,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="PATTERN", help="Only files that match, as in a .gitignore."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="No files that match, as in a .gitignore.")
    ] = None,
    max_file_bytes: Annotated[
        int, typer.Option("--max-file-bytes", min=1, help="Larger files are skipped.")
    ] = MAX_FILE_BYTES,
    poll: Annotated[
        bool, typer.Option("--poll", help="Look for changes regularly instead of waiting for file events.")
    ] = False,
    keep: Annotated[bool, typer.Option("--store/--no-store", help="Keep token ids on disk for the next start.")] = True,
) -> None:
    """Tokenise the text files of a folder, and show what changes, until Ctrl-C.

    Git's ignore rules apply. Ends with 0 after --once, 2 for bad input, 4 where the tokenizer is not available, 130
    after Ctrl-C.
    """
    resolved = resolve(os.environ)
    settings = make_model_settings(os.environ, resolved)
    output = Console(highlight=False)
    view: View = JsonView() if as_json else TableView(output) if output.is_terminal and not once else LineView(output)
    try:
        tokenizer = open_tokenizer(model or resolved.values.model, settings)
        started = time.perf_counter()
        with _translate_errors(), ExitStack() as stack:
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
            view.on_index(cache.snapshot(), (time.perf_counter() - started) * 1e3, cache.notices)
            if not once:
                for update in updates:
                    view.on_update(update)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # `hunk watch | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Progress:
    """Draws the progress of indexing, from its first report."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._bar = make_progress(Console(stderr=True, highlight=False))
        self._has_begun = False

    def __call__(self, progress: IndexProgress) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._stack.enter_context(self._bar.track("indexing", progress.of_bytes))
        self._bar.update(progress.num_bytes)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except RepoCacheError as fault:
        raise BadRequest(str(fault)) from fault
