// A small file and edits to try: one for each way in which an edit is decided.

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

// Nothing says whether the lines between the first two are to go.
const BY_WEIGHING = `        now = time.monotonic()
        if len(recent) + cost > self.limit:
            return False
        recent += [now] * cost
        return True
`;

const BY_MODEL = `    def forget(self, client):
        """Start anew for a client; whether it was known."""
        return self.seen.pop(client, None) is not None
`;

export const EXAMPLES = [
  { title: "A rule decides", says: "A SEARCH/REPLACE block with one place in the file. No model is asked.", edit: BY_RULE, mode: "auto" },
  {
    title: "The model weighs",
    says: "A snippet that leaves lines out, and can be read in several ways. The model scores them.",
    edit: BY_WEIGHING,
    mode: "auto",
  },
  { title: "The model writes", says: "A snippet that the model merges by itself, token by token.", edit: BY_MODEL, mode: "model" },
].map((example) => ({ name: "limits.py", text: FILE, ...example }));
