"""Writes files and undoes writes at random until it is killed; says on its output what it is about to make of them."""

from __future__ import annotations

import json
import random
import sys
from hashlib import sha256
from pathlib import Path

from agent_runtime.workspace.history import History, keep_old, list_undone
from agent_runtime.workspace.journal import Journal
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.undo import undo_write
from agent_runtime.workspace.workspace import FileChange, write_files

PATHS = ("a.py", "b.py", "d/c.py")


def read_state(root: Path) -> dict[str, str]:
    """The texts of the files by path."""
    return {path: (root / path).read_text() for path in PATHS if (root / path).exists()}


def say(step: list[dict[str, str]]) -> None:
    """Print the states before and after a step."""
    sys.stdout.write(json.dumps(step) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run in the folder `argv[1]` with the seed `argv[2]`."""
    folder, rng = Path(sys.argv[1]), random.Random(sys.argv[2])
    root, history = folder / "root", History(folder / "history")
    confined, journal = ConfinedFolder(root), Journal(folder / "journals", root)
    while True:
        before = read_state(root)
        writes = history.list_writes()
        if writes and rng.random() < 0.4:
            undone = list_undone(writes)
            write = next((write for write in writes if write.id not in undone), writes[0])
            after = dict(before)
            for file in write.files:
                after.pop(file.path, None)
                if file.before is not None:
                    after[file.path] = history.read_bytes(file.before).decode()
            current = {path: sha256(text.encode()).hexdigest() for path, text in before.items()}
            if any(current.get(file.path) != file.after for file in write.files):
                continue
            say([before, after])
            undo_write(history, write, folder / "journals")
            continue
        after = {path: str(rng.randrange(10**9)) for path in PATHS if rng.random() < 0.7}
        changes = [
            FileChange(
                path,
                after[path].encode() if path in after else None,
                sha256(before[path].encode()).hexdigest() if path in before else "",
            )
            for path in sorted(before.keys() | after.keys())
        ]
        if not changes:
            continue
        say([before, after])
        with keep_old(history, confined, [(change.path, change.data) for change in changes]):
            write_files(confined, changes, journal)


if __name__ == "__main__":
    main()
