"""Where the files are that an agent edits: a folder of this machine, or a workspace of a service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent_runtime.generation.watcher import Watcher
from agent_runtime.types import UNSEEN, ApplyResult, Certainty, Mode, Options, surest


@dataclass(frozen=True, slots=True)
class FileText:
    """One file: its whole text, in `encoding` (a codec of Python) its bytes, and their hash."""

    path: str
    text: str
    encoding: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What an agent asks for; without `write` the file stays as it is."""

    path: str
    edit: str
    instruction: str = ""
    expected_sha256: str | None = None
    write: bool = True
    min_certainty: Certainty | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceStatus:
    """Where the files are and who merges: a folder's `root`, or a service's `url` and `workspace`, or both.

    model: what merges where no rule decides, None if that is not known. model_state: whether it is there yet. details:
    what a service says of its workspace.
    """

    model_state: str
    root: str | None = None
    url: str | None = None
    workspace: str | None = None
    model: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def options_of(edit: Edit, given: Options) -> dict[str, Any]:
    """The options of one edit; the mode is never `model`, whatever the server was started with: agents get no guess.

    Nobody sees a merge before it is written, so it has to be `UNSEEN` at least, or what the server was started with.
    An edit may ask for more, never for less.
    """
    mode: Mode = "auto" if given.mode == "model" else given.mode
    floor = given.min_certainty or UNSEEN
    least = surest((floor, edit.min_certainty or floor))
    return given.options() | {"instruction": edit.instruction, "mode": mode, "min_certainty": least}


class Place(Protocol):
    """The files, and whoever merges edits into them; any number of threads may use it at once."""

    def read(self, path: str) -> FileText:
        """One file; raises BadFile, or NoConnection."""
        ...

    def edit(self, edit: Edit, watcher: Watcher) -> ApplyResult:
        """Merge an edit, and write the result if it is merged and is to be written.

        Raises Stale, EditRefused, BadFile, ModelUnavailable and what else a merge can end with.
        """
        ...

    def status(self) -> PlaceStatus:
        """What an agent may want to know of the place; raises NoConnection."""
        ...

    def close(self) -> None:
        """End what is under way, and take no more."""
        ...
