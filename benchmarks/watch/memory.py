"""Index a folder and print how much the process has grown: `python -m benchmarks.watch.memory FOLDER TOKENIZER`."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from repo_cache.cache import RepoCache
from repo_cache.tokenizer import BPETokenizer


def main() -> None:
    folder, tokenizer_file = map(Path, sys.argv[1:])
    tokenizer = BPETokenizer.from_file(tokenizer_file)
    tokenizer.encode_batch([folder.name] * 64)  # its threads and tables are not the cache's
    before = _resident_bytes()
    with RepoCache.open(folder, tokenizer, watch=False) as cache:
        gc.collect()
        grown = _resident_bytes() - before
        print(json.dumps({"num_tokens": cache.snapshot().num_tokens, "grown_mb": grown / 1e6}))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
