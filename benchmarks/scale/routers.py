"""Request routers that are measured beside Serve's consistent hashing. Imports Ray."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from ray.serve.config import RequestRouterConfig  # noqa: F401 -- before the next, or Serve's imports are circular
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from benchmarks.scale.placement import PrefixPlacement


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


class PrefixMemoryRouter(RequestRouter):
    """Sends a session where its last request went, and a new one to the replica with the fewest live sessions."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without memory."""
        self._placement = PrefixPlacement()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return all replicas, the one that holds the session's KV first."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        by_name = {str(replica.replica_id): replica for replica in candidate_replicas}
        running = {name: self.replica_queue_len_cache.get(replica.replica_id) or 0 for name, replica in by_name.items()}
        keys = [pending_request.metadata.session_id]
        ranked = self._placement.rank(keys, running, time.monotonic())
        self._placement.record(keys, ranked[0], time.monotonic())  # another may come before it is sent
        return [[by_name[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember where the request went: if its replica was full, not where it was to go."""
        self._placement.record([pending_request.metadata.session_id], str(replica_id), time.monotonic())
