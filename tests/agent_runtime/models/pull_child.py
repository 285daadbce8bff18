"""A process of `hunk models` whose catalogue is the entry in its first argument; not a test itself."""

from __future__ import annotations

import json
import signal
import sys

from agent_runtime.cli.models import models
from agent_runtime.errors import HunkError
from agent_runtime.models import config
from agent_runtime.models.config import CatalogueEntry

if __name__ == "__main__":
    # A shell that starts the tests in the background has them ignore Ctrl-C, and we would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.CATALOGUE = (CatalogueEntry(**json.loads(sys.argv.pop(1))),)
    try:
        models()
    except HunkError as fault:
        sys.stderr.write(f"{fault}\n")
        sys.exit(fault.exit_code)
