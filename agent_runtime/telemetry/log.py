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
"""Maximum lines that wait to be written: half a minute of 300 requests a second."""

LEVELS: dict[LogLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(log_format: LogFormat | None, level: LogLevel, stream: TextIO = sys.stderr) -> LineWriter:
    """Log to `stream`, uvicorn's lines too. Without a format, a terminal gets text, and other streams JSON."""
    chosen = log_format or ("text" if stream.isatty() else "json")
    writer = LineWriter(stream)
    writer.setFormatter(JsonLines() if chosen == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [writer]
    root.setLevel(max(logging.WARNING, LEVELS[level]))  # only warnings and errors of other libraries
    logging.getLogger("hunk").setLevel(LEVELS[level])
    return writer


class LineWriter(logging.Handler):
    """Writes lines in its own thread, so that no request waits for a full pipe; lost lines are counted."""

    def __init__(self, stream: TextIO, max_waiting: int = MAX_WAITING) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(max_waiting)
        self._num_lost = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._num_lost += 1

    def finish(self, timeout_s: float = 1.0) -> bool:
        """Write the waiting lines and stop; return whether all were written within the time."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        with suppress(OSError, ValueError):  # the reader has closed the stream
            while (line := self._lines.get()) is not None:
                self._write(line)
                if lost := self._format_lost():
                    self._write(lost)

    def _format_lost(self) -> str:
        """Return a line with the number of lines lost since the last call, "" if none was."""
        lost, self._num_lost = self._num_lost, 0
        event = logging.LogRecord("hunk.log", logging.WARNING, "", 0, "lines were lost", None, None)
        event.fields = {"lines": lost}
        return self.format(event) if lost else ""

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, message and fields as JSON."""
        return json.dumps(_to_event(record), ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """Formats a record as one line: time, level, message, and `key=value` for each field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; values with special characters are quoted."""
        event = _to_event(record)
        first = f"{event.pop('time')} {event.pop('level'):7} {_format_value(event.pop('message'), words=True)}"
        return " ".join([first, *(f"{name}={_format_value(value)}" for name, value in event.items())])


def _to_event(record: logging.LogRecord) -> dict[str, Any]:
    """Return a record's fields. Of an exception: its class and stack, not its message, which may quote a file."""
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
