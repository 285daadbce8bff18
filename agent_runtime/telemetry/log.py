"""The log of a service: one line per event, as JSON or key=value."""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]

MAX_WAITING = 10_000
"""Lines that wait to be written; at 300 requests a second, half a minute in which nobody reads the pipe."""

LEVELS: dict[LogLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(log_format: LogFormat | None, level: LogLevel, stream: TextIO = sys.stderr) -> LineWriter:
    """Have this process log to `stream`, uvicorn's own lines too; without a format a terminal gets text, else JSON."""
    chosen = log_format or ("text" if stream.isatty() else "json")
    writer = LineWriter(stream)
    writer.setFormatter(JsonLines() if chosen == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [writer]
    root.setLevel(max(logging.WARNING, LEVELS[level]))  # of other libraries what is wrong, no more
    logging.getLogger("hunk").setLevel(LEVELS[level])
    return writer


class LineWriter(logging.Handler):
    """Writes in a thread of its own: a full pipe costs lines, which are counted, and no request waits for it."""

    def __init__(self, stream: TextIO, max_waiting: int = MAX_WAITING) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(max_waiting)
        self._num_lost = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have it written soon."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._num_lost += 1

    def finish(self, timeout_s: float = 1.0) -> bool:
        """Whether all that waits could be written within the time; nothing is taken any more then."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        with suppress(OSError, ValueError):  # whoever read it is gone
            while (line := self._lines.get()) is not None:
                self._write(line)
                if lost := self._format_lost():
                    self._write(lost)

    def _format_lost(self) -> str:
        """A line about those that were lost since the last one, if there are any."""
        lost, self._num_lost = self._num_lost, 0
        event = logging.LogRecord("hunk.log", logging.WARNING, "", 0, "lines were lost", None, None)
        event.fields = {"lines": lost}
        return self.format(event) if lost else ""

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class JsonLines(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, what happened, and its fields."""
        return json.dumps(_event(record), ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """Time, level, what happened, and `key=value` for each field."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, in one piece whatever the values hold."""
        event = _event(record)
        first = f"{event.pop('time')} {event.pop('level'):7} {_format_value(event.pop('message'), words=True)}"
        return " ".join([first, *(f"{name}={_format_value(value)}" for name, value in event.items())])


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """A record's parts. Of an error its kind and where it was raised, not its message, which may quote a source."""
    at = datetime.fromtimestamp(record.created, UTC)
    event: dict[str, Any] = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "message": record.getMessage(),
    }
    if not record.name.startswith("hunk"):
        event["logger"] = record.name
    event |= getattr(record, "fields", {})
    if record.exc_info and record.exc_info[0] is not None:
        event["error"] = record.exc_info[0].__name__
        event["stack"] = [f"{at.filename}:{at.lineno} {at.name}" for at in traceback.extract_tb(record.exc_info[2])]
    return event


def _format_value(value: object, *, words: bool = False) -> str:
    text = str(value)
    spoils = "\n\r" if words else '"= \t\n\r'
    plain = text.isprintable() and text and not any(character in spoils for character in text)
    return text if plain else json.dumps(text, ensure_ascii=True)
