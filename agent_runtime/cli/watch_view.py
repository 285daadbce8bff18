"""Shows what a watched folder holds and what changes: a live table, plain lines, or JSON."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from repo_cache.batches import Notice
from repo_cache.changes import SpanChanges
from repo_cache.snapshot import Snapshot
from repo_cache.subscribing import Update
from repo_cache.types import FileChange

MAX_FILES = 100
"""Files of one update that are shown with their spans; a branch switch changes thousands, and each takes a parse."""

MAX_NOTICES = 3
KIND_STYLES = {"added": "green", "removed": "red", "modified": "yellow", "renamed": "cyan"}


class View(AbstractContextManager["View"]):
    """Is told of everything."""

    def indexed(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        """The folder is indexed."""

    def updated(self, update: Update) -> None:
        """Something changed, or there is something to say."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to be done."""


class JsonView(View):
    """One object a line: `event` is `index`, `change` or `notice`."""

    def indexed(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        _say(event="index", **_totals(snapshot), milliseconds=round(milliseconds, 3), skipped=dict(snapshot.skipped))
        for notice in notices:
            _say(event="notice", kind=notice.kind, message=notice.message)

    def updated(self, update: Update) -> None:
        for notice in update.notices:
            _say(event="notice", kind=notice.kind, message=notice.message)
        with_spans = len(update.changes) <= MAX_FILES
        for change in update.changes:
            after = change.after
            _say(
                event="change",
                version=update.snapshot.version,
                path=change.path,
                kind=change.kind,
                old_path=change.old_path,
                sha256=after.content_hash if after is not None else None,
                spans=_counts(change.spans) if with_spans else None,
                tokens=len(after) if after is not None else 0,
                tokens_encoded=update.encoded.get(change.path, 0),
                milliseconds=round(update.milliseconds, 3),
            )


class LineView(View):
    """Plain lines, for a log or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def indexed(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        self._line(_headline(snapshot, milliseconds))
        for notice in notices:
            self._line(notice.message)

    def updated(self, update: Update) -> None:
        for notice in update.notices:
            self._line(notice.message)
        for row in _rows(update):
            self._line("  ".join(cell for cell in (row.kind, row.path, row.spans, row.tokens, row.time) if cell))

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class TableView(View):
    """A table on the terminal: the newest changes, below what the folder holds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._rows: deque[_Row] = deque(maxlen=200)
        self._notices: deque[str] = deque(maxlen=MAX_NOTICES)
        self._snapshot: Snapshot | None = None
        self._index_ms = 0.0

    def indexed(self, snapshot: Snapshot, milliseconds: float, notices: Iterable[Notice]) -> None:
        self._snapshot, self._index_ms = snapshot, milliseconds
        self._notices.extend(notice.message for notice in notices)
        self._live.start()
        self._draw()

    def updated(self, update: Update) -> None:
        self._snapshot = update.snapshot
        self._notices.extend(notice.message for notice in update.notices)
        self._rows.extend(_rows(update))
        self._draw()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _draw(self) -> None:
        assert self._snapshot is not None
        table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        table.add_column("file", overflow="ellipsis", no_wrap=True, ratio=1)
        table.add_column("what")
        table.add_column("spans", no_wrap=True)
        table.add_column("tokens encoded", justify="right", no_wrap=True)
        table.add_column("time", justify="right", no_wrap=True)
        head = [Text(_headline(self._snapshot, self._index_ms), style="bold")]
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


def _rows(update: Update) -> Iterator[_Row]:
    """A row a file; the time is of the whole update and stands in its first."""
    changes = update.changes.files
    took = _duration(update.milliseconds)
    if len(changes) > MAX_FILES:
        kinds = Counter(change.kind for change in changes)
        total = sum(len(change.after) for change in changes if change.after is not None)
        what = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
        yield _Row(f"{len(changes):,} files: {what}", "", "", f"{update.num_encoded:,} of {total:,}", took)
        return
    for number, change in enumerate(changes):
        path = f"{change.old_path} → {change.path}" if change.old_path is not None else change.path
        tokens = f"{update.encoded.get(change.path, 0):,} of {len(change.after):,}" if change.after is not None else ""
        yield _Row(_printable(path), change.kind, _span_words(change), tokens, "" if number else took)


def _span_words(change: FileChange) -> str:
    if change.kind == "removed":
        return ""
    counts = _counts(change.spans)
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "none"


def _counts(spans: SpanChanges) -> dict[str, int]:
    return {
        "kept": spans.num_kept,
        "moved": len(spans.moved),
        "changed": len(spans.changed),
        "new": len(spans.new),
        "removed": len(spans.removed),
    }


def _headline(snapshot: Snapshot, milliseconds: float) -> str:
    skipped = Counter(snapshot.skipped.values())
    files = "file" if len(snapshot) == 1 else "files"
    left_out = f", {len(snapshot.skipped):,} skipped ({_most(skipped)})" if skipped else ""
    return (
        f"{_printable(str(snapshot.root))}: {len(snapshot):,} {files}, {snapshot.num_tokens:,} tokens{left_out}, "
        f"indexed in {_duration(milliseconds)}"
    )


def _most(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {reason}" for reason, number in Counter(reasons).most_common(3))


def _totals(snapshot: Snapshot) -> dict[str, Any]:
    return {"root": str(snapshot.root), "files": len(snapshot), "tokens": snapshot.num_tokens}


def _printable(path: str) -> str:
    """The name of a file may hold what clears a terminal, or worse."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in path)


def _duration(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:,.1f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"


def _say(**fields: Any) -> None:
    typer.echo(json.dumps(fields))  # typer flushes each line
