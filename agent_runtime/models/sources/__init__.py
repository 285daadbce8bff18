"""Where models come from; each source is a file here."""

from __future__ import annotations

from collections.abc import Sequence

from agent_runtime.models.sources.base import Source
from agent_runtime.models.sources.hub import HubSource
from agent_runtime.models.sources.registry import RegistrySource


def named_sources(names: Sequence[str]) -> tuple[Source, ...]:
    """The sources called so (`settings.SOURCE_NAMES`), as this machine's environment configures them."""
    known: dict[str, type[HubSource] | type[RegistrySource]] = {"hub": HubSource, "registry": RegistrySource}
    return tuple(known[name]() for name in names)
