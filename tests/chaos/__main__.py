"""Run the chaos test: `python -m tests.chaos --minutes 2` (what `make chaos MINUTES=2` runs).

Another process creates, edits, renames and deletes files and folders, changes ignore files, makes links, commits and
checks out branches, as fast as it can. After every few hundred operations it pauses. Then the snapshot that the watcher
has brought about must equal one from scratch (paths, hashes, token ids, spans, what is skipped and for which reason),
and the updates that a subscriber was told must add up to it. The last line is a JSON object; status 1 says that
something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import open_tokenizer
from tests.chaos.chaos import run_chaos


def main() -> None:
    """Make chaos as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="no round begins later than this")
    parser.add_argument("--operations", type=int, default=1_000_000, help="no round begins behind so many")
    parser.add_argument("--round", type=int, default=250, help="operations between two comparisons")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds that a snapshot may take to be right")
    parser.add_argument("--polling", action="store_true", help="without events")
    parser.add_argument("--tokenizer", default="smollm2-135m", help="of this model")
    options = parser.parse_args()
    tokenizer = open_tokenizer(options.tokenizer, ModelSettings.from_env(os.environ))
    with tempfile.TemporaryDirectory(prefix="hunk-chaos-") as folder:
        report = run_chaos(
            Path(folder),
            tokenizer,
            seed=options.seed,
            operations=options.operations,
            seconds=60 * options.minutes,
            a_round=options.round,
            patience_s=options.patience,
            polling=True if options.polling else None,
            say=lambda line: print(line, flush=True),
        )
    for failure in report.failures:
        print(f"FAILED: {failure}")
    print(json.dumps({"ok": report.ok, "seed": options.seed, **asdict(report)}))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
