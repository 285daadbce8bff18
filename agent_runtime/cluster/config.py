"""How replicas load and run their model. Does not import Ray, which reads its variables when it is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_runtime.models.config import LoadOptions, MergeOptions, ModelSettings

CONSISTENT_HASH = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """How a replica loads and runs its model.

    num_threads: of torch; None: one for each core of the machine. loopback_only: nobody but this machine may reach the
    replica. drain_s: seconds that a replica that is stopped or replaced has to finish its requests. router: the class
    of Serve's request router, as a path to import.
    """

    model: str
    settings: ModelSettings
    options: LoadOptions
    merging: MergeOptions
    num_replicas: int = 1
    num_threads: int | None = None
    loopback_only: bool = False
    drain_s: float = 20.0
    router: str = CONSISTENT_HASH

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them, for a Serve config file."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ReplicaConfig:
        """Read what `to_json` wrote."""
        settings, options = fields["settings"], fields["options"]
        paths = {name: options[name] and Path(options[name]) for name in ("adapter", "kv_tier_key")}
        return cls(
            **{
                **fields,
                "settings": ModelSettings(
                    Path(settings["cache_dir"]), tuple(settings["sources"]), settings["prompt_form"]
                ),
                "options": LoadOptions(**{**options, **paths}),
                "merging": MergeOptions(**fields["merging"]),
            }
        )
