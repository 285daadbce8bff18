"""What a source of models is: something that appends the bytes that a partial file lacks."""

from __future__ import annotations

from typing import Protocol

from agent_runtime.models.catalogue import CatalogueEntry
from agent_runtime.models.partial import Partial


class SourceError(Exception):
    """This source cannot give the model, or not the rest of it; the message is one line, for a person."""


class Source(Protocol):
    """The file is the same from every source, so one may go on where another broke off."""

    @property
    def name(self) -> str:
        """As the user writes it."""

    def fetch(self, entry: CatalogueEntry, partial: Partial) -> None:
        """Appends bytes from `partial.size` on until the file is complete.

        Raises SourceError (what was appended until then is right and stays), OSError where the disk refuses.
        """
