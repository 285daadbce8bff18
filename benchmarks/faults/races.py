"""Two writers of one file that know nothing of each other: how many acknowledged updates are not in the file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.faults.setting import POLITE, Setting

Row = dict[str, Any]

START = "a = 0\nb = 0\n"
WHOLE = re.compile(r"a = (\d+)\nb = (\d+)\n")

READ_SECONDS = 0.002
"""How often the file is read meanwhile, to see whether it is ever torn."""

COMMAND_SHARE = 40
"""A process for each write takes so many times longer than a request: so many times fewer are made beside these."""


def races(setting: Setting, num_writes: int) -> list[Row]:
    """All combinations of writers, with so many acknowledged updates each."""
    root, sub = setting.root, setting.root / "sub"
    sub.mkdir()
    file = sub / "raced.txt"
    journals, others = str(setting.cache / "journals"), str(setting.folder / "cache-2" / "journals")
    here = ("root", str(root), journals)
    pairs: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("one root, two cache folders", here, ("root", str(root), others)),
        ("a root and a folder in it", here, ("root", str(sub), journals)),
        ("a root and a file", here, ("file",)),
        ("with a journal and without", here, ("root", str(root), "")),
    ]
    rows = [race(name, file, first, second, num_writes) for name, first, second in pairs]
    with ExitStack() as services:
        running = services.enter_context(setting.serving("--no-watch"))
        other = services.enter_context(setting.serving("--no-watch", cache=setting.folder / "cache-2"))
        with setting.client(running) as client:
            client.post("/workspaces", json={"root": str(sub), "name": "nested"}).raise_for_status()
        token = setting.tokens[POLITE]
        default = ("service", setting.url(running), token, "default", "sub/raced.txt")
        nested = ("service", setting.url(running), token, "nested", "raced.txt")
        elsewhere = ("service", setting.url(other), token, "default", "sub/raced.txt")
        rows.append(race("a service, nested workspaces", file, default, nested, num_writes))
        rows.append(race("two services, two cache folders", file, default, elsewhere, num_writes))
        rows.append(race("a service and `hunk apply`", file, default, ("command",), num_writes, COMMAND_SHARE))
    return rows


def race(name: str, file: Path, first: Sequence[str], second: Sequence[str], num_writes: int, share: int = 1) -> Row:
    """Two writers until each has half of the updates acknowledged, the second that by `share`."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    file.write_text(START)
    started, torn = time.monotonic(), 0
    command = [sys.executable, "-m", "benchmarks.faults.writers"]
    count = max(1, num_writes // 2)
    writers = [
        subprocess.Popen([*command, who, str(file), str(most), *kind], stdout=subprocess.PIPE, text=True)
        for who, most, kind in (("a", count, first), ("b", max(1, count // share), second))
    ]
    while any(writer.poll() is None for writer in writers):
        torn += not WHOLE.fullmatch(file.read_text())
        time.sleep(READ_SECONDS)
    seconds = time.monotonic() - started
    seen = [json.loads(writer.communicate()[0]) for writer in writers]
    found = WHOLE.fullmatch(file.read_text())
    done = [each["done"] for each in seen]
    return {
        "what": name,
        "writes": sum(done),
        "refused": sum(each["refused"] for each in seen),
        "lost_updates": sum(done) - sum(map(int, found.groups())) if found else sum(done),
        "torn": torn + (found is None) + len(list(file.parent.glob(".*.hunk"))),
        "seconds": round(seconds, 1),
    }
