"""Run the soak test of the engine: `python -m tests.soak --minutes 30` (what `make soak MINUTES=30` runs).

Threads and asyncio tasks send random requests to one engine with little memory: shared prefixes, every sampling
setting, priorities, drafts good, bad and broken, deadlines, cancellations and disconnects in every state, requests that
do not fit. Books are checked in every step; no request may stick; memory stays flat; nothing is left when all is over;
and a sample of what was written among others is written again alone and must be the same. The last line is a JSON
object; status 1 says that something was found.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from dataclasses import asdict

from agent_runtime.process import set_environment

set_environment()  # before torch is imported

from tests.soak.soak import soak  # noqa: E402
from tests.soak.traffic import TINY, setting  # noqa: E402


def main() -> None:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--model", default="smollm2-135m", help=f"a model of the catalogue, or {TINY!r}: a random one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=180.0, help="seconds that a request may take")
    options = parser.parse_args()
    # An engine that hangs would hang whoever asks it: then all stacks are shown, and status 1 is what is left.
    faulthandler.dump_traceback_later(60 * options.minutes + 10 * options.patience, exit=True)
    report = soak(
        setting(options.model),
        seconds=60 * options.minutes,
        seed=options.seed,
        patience_s=options.patience,
        say=lambda line: print(line, flush=True),
    )
    for failure in report.failures:
        print(f"FAILED: {failure}")
    print(json.dumps({"ok": report.ok, "model": options.model, "seed": options.seed, **asdict(report)}))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
