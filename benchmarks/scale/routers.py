"""The request router that is measured beside Serve's consistent hashing. Imports Ray."""

from __future__ import annotations

from itertools import count
from typing import Any

from ray.serve.config import RequestRouterConfig  # noqa: F401 -- before the next, or Serve's imports are circular
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class RoundRobinRouter(RequestRouter):
    """Sends each request to the next replica, whatever it holds."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin with the first replica."""
        self._turns = count()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas from the next on."""
        ordered = sorted(candidate_replicas, key=lambda replica: str(replica.replica_id))
        first = next(self._turns) % len(ordered)
        return [[replica] for replica in (*ordered[first:], *ordered[:first])]
