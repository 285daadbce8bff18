"""What the last minutes' requests were like: the rates that the page and `GET /stats` show."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from agent_runtime.telemetry.observer import Finished, Observer
from agent_runtime.types import total_usage

WINDOW_S = 300.0
MAX_REQUESTS = 2000
"""At 300 edits a second by rule, the last seven seconds; what the model does in five minutes on a CPU fits in."""


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    request: Finished


class Rolling(Observer):
    """Keeps the requests of the last `window_s` seconds, `max_requests` of them at most."""

    def __init__(
        self,
        window_s: float = WINDOW_S,
        max_requests: int = MAX_REQUESTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: deque[_Seen] = deque(maxlen=max_requests)

    def finished(self, request: Finished) -> None:
        """Keep it."""
        with self._lock:
            self._seen.append(_Seen(self._clock(), request))

    def rates(self) -> dict[str, Any]:
        """The `window` of `GET /stats` (docs/api.md); a rate is null where there is nothing to divide by."""
        with self._lock:
            oldest = self._clock() - self._window_s
            while self._seen and self._seen[0].at < oldest:
                self._seen.popleft()
            requests = [seen.request for seen in self._seen]
        usage = total_usage([request.usage for request in requests])
        return {
            "seconds": self._window_s,
            "requests": len(requests),
            "outcomes": dict(Counter(request.outcome for request in requests)),
            "prompt": usage.prompt,
            "cached": usage.cached,
            "reused_approximate": usage.reused_approximate,
            "recomputed": usage.recomputed,
            "completion": usage.completion,
            "forwards": usage.forwards,
            "prefix_hit_rate": _share(usage.cached, usage.prompt),
            "approximate_share": _share(usage.reused_approximate, usage.prompt),
            "tokens_per_forward": _share(usage.completion, usage.forwards),
            "total_ms": _spread([request.timings["total_ms"] for request in requests if "total_ms" in request.timings]),
            "first_token_ms": _spread([one.first_token_ms for one in requests if one.first_token_ms is not None]),
        }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median and 99th percentile, None without values."""
    if not values:
        return None
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}
