"""Where measured pass times are kept from one start to the next, one file a model and machine."""

from __future__ import annotations

import json
import math
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from engine.speculation.pass_times import KNOTS, PassTimes

FORMAT = 2
"""Of the file; one of another format is not read."""

MAX_BYTES = 1 << 20
"""One that is longer is none of ours."""


@dataclass(frozen=True, slots=True)
class PassTimesFile:
    """`folder` need not exist; `model` and `machine` say what the times are of: those of others are not read."""

    folder: Path
    model: str
    machine: str

    @property
    def path(self) -> Path:
        """Named after what it is for, so that several models and machines share a folder."""
        name = blake2b(json.dumps([FORMAT, self.model, self.machine]).encode(), digest_size=8).hexdigest()
        return self.folder / f"{name}.json"

    def read(self) -> PassTimes | None:
        """What is kept; None where there is nothing, or nothing that is whole and of this model and machine."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):  # whatever lies there
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
            with os.fdopen(descriptor, "rb") as file:
                kept = json.loads(file.read(MAX_BYTES))
            seconds = {int(rows): _checked(each) for rows, each in kept["seconds"].items()}
            is_ours = (kept["format"], kept["model"], kept["machine"]) == (FORMAT, self.model, self.machine)
            if is_ours and tuple(seconds) == KNOTS:
                return PassTimes(seconds)
        return None

    def write(self, times: PassTimes) -> None:
        """Keep them, all or nothing; where that cannot be done, the next start measures again."""
        content = {"format": FORMAT, "model": self.model, "machine": self.machine, "seconds": times.seconds}
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=self.folder, suffix=".partial")
            try:
                with os.fdopen(number, "w") as file:
                    json.dump(content, file)
                Path(name).replace(self.path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise


def _checked(seconds: Any) -> float:
    if not 0.0 < seconds < math.inf:  # a NaN fails too
        raise ValueError(f"a pass of {seconds} s")
    return float(seconds)
