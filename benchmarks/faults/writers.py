"""A writer in a process of its own, one of two to a file: `python -m benchmarks.faults.writers NAME FILE KIND ...`.

The file holds a line `NAME = NUMBER` for each writer. A writer counts its own up, each time on top of what it has read
just before, until so many writes were acknowledged, and prints how many were, and how many refused. Kinds:

    file                      as `hunk apply FILE --write` does, in this process
    root ROOT JOURNALS        as `hunk apply --root` and a service do, in this process; JOURNALS may be ""
    service URL TOKEN WORKSPACE PATH
    command                   `hunk apply FILE --write`, a process for each write
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import httpx

from agent_runtime.errors import HunkError
from agent_runtime.workspace.journal import Journal
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.workspace import FileChange, replace_file, write_files
from benchmarks.edit_formats import render_replacement
from benchmarks.serve.service import HUNK

Write = Callable[[str, str, str], bool]
"""Writes the file that was read, with one line changed to another; returns whether that was acknowledged."""


def main(arguments: Sequence[str]) -> None:
    name, file, count, kind, *rest = arguments
    path = Path(file)
    write = _make_writer(path, kind, rest)
    done = refused = 0
    while done < int(count):
        before = path.read_text(encoding="utf-8")
        match = re.search(rf"^{name} = (\d+)$", before, re.MULTILINE)
        assert match is not None
        if write(before, f"{name} = {match[1]}\n", f"{name} = {int(match[1]) + 1}\n"):
            done += 1
        else:
            refused += 1
    json.dump({"done": done, "refused": refused}, sys.stdout)


def _make_writer(path: Path, kind: str, rest: Sequence[str]) -> Write:
    if kind == "service":
        return _write_over_http(*rest)
    if kind == "command":
        return lambda before, old, new: _write_by_command(path, old, new)

    def put(data: bytes, expected_sha256: str) -> None:
        if kind == "file":
            replace_file(path, data, expected_sha256=expected_sha256)
            return
        root = ConfinedFolder(Path(rest[0]))
        journal = Journal(Path(rest[1]), root.root) if rest[1] else None
        write_files(root, [FileChange(str(path.relative_to(rest[0])), data, expected_sha256)], journal)

    def write(before: str, old: str, new: str) -> bool:
        try:
            put(before.replace(old, new).encode(), sha256(before.encode()).hexdigest())
        except HunkError:
            return False
        return True

    return write


def _write_over_http(url: str, token: str, workspace: str, path: str) -> Write:
    client = httpx.Client(timeout=60, headers={"authorization": f"Bearer {token}"})

    def write(before: str, old: str, new: str) -> bool:
        body = {"path": path, "edit": render_replacement(old, new), "write": True, "mode": "deterministic"}
        body |= {"workspace": workspace, "expected_sha256": sha256(before.encode()).hexdigest()}
        answer = client.post(f"{url}/apply", json=body)
        assert answer.status_code == 200 or answer.status_code in range(400, 500), answer.text
        return answer.status_code == 200 and bool(answer.json()["written"])

    return write


def _write_by_command(path: Path, old: str, new: str) -> bool:
    command: list[str | Path] = [HUNK, "apply", path, "--edit", "-", "--write", "--mode", "deterministic"]
    done = subprocess.run(
        command, input=render_replacement(old, new), text=True, capture_output=True, check=False, env=os.environ
    )
    return not done.returncode


if __name__ == "__main__":
    main(sys.argv[1:])
