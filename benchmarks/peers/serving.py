"""The contestant's side of the wire: a line of JSON asks, a line of JSON answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO


def take_stdout() -> TextIO:
    """The real standard output; from now on, what libraries print there goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def serve(channel: TextIO, operations: Mapping[str, Callable[[Any], Any]], hello: Mapping[str, Any]) -> None:
    """Answer until standard input ends; an error ends the process, its traceback on standard error."""
    _say(channel, hello)
    for line in sys.stdin:
        asked = json.loads(line)
        _say(channel, operations[asked["operation"]](asked["argument"]))


def peak_bytes(_: object = None) -> int:
    """The most memory that this process has had resident."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _say(channel: TextIO, value: Any) -> None:
    channel.write(json.dumps(value) + "\n")
    channel.flush()
