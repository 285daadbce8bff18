// Small files and edits to try: one that a rule decides, one that the model has to write.

const FILE = `"""Limits of requests, by client."""

import time
from collections import defaultdict

WINDOW_SECONDS = 60
LIMIT = 100


class RateLimiter:
    """Counts requests of each client in a sliding window."""

    def __init__(self, limit=LIMIT):
        self.limit = limit
        self.seen = defaultdict(list)

    def allow(self, client):
        """Whether the client may go on; if so, the request counts."""
        now = time.monotonic()
        recent = [at for at in self.seen[client] if now - at < WINDOW_SECONDS]
        self.seen[client] = recent
        if len(recent) >= self.limit:
            return False
        recent.append(now)
        return True

    def forget(self, client):
        """Start anew for a client."""
        self.seen.pop(client, None)
`;

const BY_RULE = `<<<<<<< SEARCH
WINDOW_SECONDS = 60
LIMIT = 100
=======
WINDOW_SECONDS = 10
LIMIT = 25
>>>>>>> REPLACE
`;

const BY_MODEL = `class RateLimiter:
    # ... existing code ...

    def allow(self, client, cost=1):
        """Whether the client may go on; if so, the request counts as many as it costs."""
        now = time.monotonic()
        recent = [at for at in self.seen[client] if now - at < WINDOW_SECONDS]
        if len(recent) + cost > self.limit:
            return False
        self.seen[client] = recent + [now] * cost
        return True

    # ... existing code ...
`;

export const EXAMPLES = [
  { name: "limits.py", text: FILE, edit: BY_RULE, mode: "auto" },
  { name: "limits.py", text: FILE, edit: BY_MODEL, mode: "model" },
];
