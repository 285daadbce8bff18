"""The client of the service that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_runtime.errors import BadRequest
from agent_runtime.settings.choosing import Chosen

if TYPE_CHECKING:
    from agent_runtime.client import Client  # most edits ask no service, and need nothing of what does


def open_client(chosen: Chosen) -> Client:
    """Of `url`, with `token`; raises BadRequest, which names the place of the one that is wrong."""
    from agent_runtime.client import Client

    try:
        return Client(chosen.values.url, token=chosen.values.token)
    except BadRequest as fault:
        name = "token" if fault.field == "token" else "url"
        _, _, wrong = str(fault).partition(" ")
        raise BadRequest(f"{chosen.origins[name]} {wrong}", field=name) from None
