"""One request of the service's API and how its answer is read; all clients make and read the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Call(Generic[Value]):
    """A request, and what makes a value of the JSON that answers it.

    changes_nothing: the answer is all that comes of it, as of a GET. works: the service merges or asks the model for
    it, which takes as long as it takes. silence_s: the service may be silent for so long, because that was asked for.
    once: it asks how things are at this moment, so that a later answer is no better.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    read: Callable[[Any], Value]
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str | int | float] = field(default_factory=dict)
    changes_nothing: bool = False
    idempotency_key: str | None = None
    works: bool = False
    silence_s: float = 0.0
    once: bool = False

    @property
    def may_repeat(self) -> bool:
        """Whether it is sent again after a failure: sending it twice does no more than sending it once."""
        is_safe = self.method == "GET" or self.changes_nothing or self.idempotency_key is not None
        return is_safe and not self.once


def path_of(*names: str) -> str:
    """A path of the API in which each name is one segment, whatever characters it has."""
    return "".join("/" + _segment(name) for name in names)


def below(path: str) -> str:
    """The path of a file as the end of a path of the API: `..` stays in it, for the service to refuse."""
    return "/".join(_segment(name) for name in path.split("/"))


def _segment(name: str) -> str:
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")
