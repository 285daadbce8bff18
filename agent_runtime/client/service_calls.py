"""The calls that ask about the service itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_runtime.client.call import Call


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model that the service runs; `id` is what a request's `model` names."""

    id: str
    owned_by: str = ""


def models_call() -> Call[tuple[ModelEntry, ...]]:
    """`GET /v1/models`, which has OpenAI's shape."""
    return Call("GET", "/v1/models", lambda answer: tuple(_model(entry) for entry in answer["data"]))


def stats_call() -> Call[dict[str, Any]]:
    """`GET /stats`."""
    return Call("GET", "/stats", lambda answer: dict(answer))


def health_call() -> Call[bool]:
    """`GET /healthz`."""
    return Call("GET", "/healthz", lambda answer: answer["status"] == "ok", once=True)


def ready_call() -> Call[bool]:
    """`GET /readyz`; a service that is not ready answers with a problem."""
    return Call("GET", "/readyz", lambda answer: answer["status"] == "ready", once=True)


def _model(entry: Mapping[str, Any]) -> ModelEntry:
    return ModelEntry(str(entry["id"]), str(entry.get("owned_by", "")))
