"""Build the peers' environments under the cache folder: `python -m benchmarks.peers` (what `make peers` runs)."""

from __future__ import annotations

import argparse
import os
import sys

from agent_runtime.models.config import ModelSettings
from benchmarks.peers.environments import PEERS, PeerFailed, build


def main() -> None:
    """Build what is not there yet."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    try:
        for peer in PEERS.values():
            build(peer, cache_dir)
    except PeerFailed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
