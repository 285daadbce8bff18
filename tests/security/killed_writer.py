"""A program whose children write several files and are killed, at every system call or at random moments.

    killed_writer.py FOLDER calls          a child dies before its 1st, 2nd, ... call that changes names or files
    killed_writer.py FOLDER random NUMBER  so many children die somewhere in a series of writes

Every write takes the files from one number to the next: some are replaced, one is made in a new folder, one is deleted,
one moves. After each death it looks at the files, has them recovered (a first time by a child that is killed, too), and
looks again. Prints what it saw as JSON; what is wrong ends it with a traceback.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent_runtime.types import Action, FileResult
from agent_runtime.workspace.workspace import Workspace

NUM_REPLACED = 4
NUM_WRITES = 3
"""Of a child that is killed at a random moment."""

CALLS = ("rename", "replace", "link", "unlink", "mkdir", "rmdir", "fsync", "open", "fchmod")


def wanted(number: int) -> dict[str, str]:
    """The files after that many writes."""
    text = f"number = {number}\n" * 50
    files = {f"folder/{index}.py": f"# {index}\n{text}" for index in range(NUM_REPLACED)}
    return files | {f"made/{number}/new.py": text, f"moved-{number % 2}.py": text}


def edit(number: int) -> list[FileResult]:
    """What takes the files from `number` to the next."""
    old, new = wanted(number), wanted(number + 1)
    files = [_file(path, new[path], old[path]) for path in old if path in new]
    files.append(_file(f"made/{number}/new.py", "", old[f"made/{number}/new.py"], "delete"))
    files.append(_file(f"made/{number + 1}/new.py", new[f"made/{number + 1}/new.py"], "", "create"))
    here, there = f"moved-{number % 2}.py", f"moved-{(number + 1) % 2}.py"
    files.append(_file(here, new[there], old[here], "move", there))
    return files


def _file(path: str, merged: str, before: str, action: Action = "update", move_to: str = "") -> FileResult:
    hashes = [sha256(text.encode()).hexdigest() if text else "" for text in (before, merged)]
    return FileResult(
        path, "merged", merged, "", "deterministic", "exact", 1, "certain", (), *hashes, action=action, move_to=move_to
    )


def found(root: Path) -> dict[str, str]:
    """All files that are there."""
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def number_of(root: Path) -> int:
    """After how many writes all files are; fails where they are of several, or others are there."""
    files = found(root)
    number = int(files["folder/0.py"].split("number = ")[1].split("\n")[0])
    assert files == wanted(number), f"not one state: {sorted(files)}"
    return number


def check_each(root: Path, number: int) -> None:
    """Every file is old or new, whole: looked at where its writer was just killed."""
    states = [wanted(each) for each in range(number, number + 1 + NUM_WRITES)]
    for path, text in found(root).items():
        if not path.endswith(".hunk"):
            assert any(state.get(path) == text for state in states), f"{path} is torn"


def killed(child: Callable[[], None], wait_s: float | None = None) -> bool:
    """Whether a child that does this was killed: by itself, or after so long."""
    process = os.fork()
    if not process:
        try:
            child()
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    if wait_s is not None:
        time.sleep(wait_s)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or not os.WEXITSTATUS(status), "the child failed"
    return os.WIFSIGNALED(status)


def dying_at(call: int, work: Callable[[], object]) -> None:
    """Do the work, and die before that many of the calls that change something."""
    made = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return run

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    work()


class Setting:
    """The files, the journals, and how many writes are done."""

    def __init__(self, folder: Path) -> None:
        self.root, self._journals = folder / "root", folder / "journals"
        for path, text in wanted(0).items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)
        self.number = 0
        self.seen: Counter[str] = Counter()

    def workspace(self) -> Workspace:
        """As a start opens it."""
        return Workspace(self.root, self._journals)

    def look(self) -> None:
        """Every file is whole; after recovery all are of one write, and nothing is left over."""
        check_each(self.root, self.number)
        self.seen["broken off"] += not _is_one(self.root)
        call = random.randint(1, 60)
        self.seen["recoveries killed"] += killed(partial(dying_at, call, self.workspace))
        check_each(self.root, self.number)
        self.workspace()
        number = number_of(self.root)
        assert number >= self.number
        self.seen["finished" if number > self.number else "undone"] += 1
        self.number = number
        assert not [path for path in self._journals.rglob("*") if path.is_file() and path.suffix == ".json"]
        for folder in (self.root / "made").iterdir():
            if folder.name != str(number):  # a deletion leaves its folder
                folder.rmdir()


def _is_one(root: Path) -> bool:
    try:
        number_of(root)
    except (AssertionError, KeyError):
        return False
    return True


def at_every_call(setting: Setting) -> None:
    """Kill before each call of one write, until one comes through."""

    def write() -> None:
        setting.workspace().write(edit(setting.number))

    call = 1
    while killed(partial(dying_at, call, write)):
        setting.look()
        call += 1
    setting.look()
    setting.seen["calls"] = call


def at_random(setting: Setting, number: int) -> None:
    """Kill a child somewhere in its writes, so often."""

    def write_on() -> None:
        workspace = setting.workspace()
        for each in range(setting.number, setting.number + NUM_WRITES):
            workspace.write(edit(each))
        time.sleep(10)

    workspace, times_s = setting.workspace(), []
    for each in range(3):  # the first is slow
        started = time.perf_counter()
        workspace.write(edit(each))
        times_s.append(time.perf_counter() - started)
    setting.number = 2
    setting.look()
    one_s = min(times_s)
    for _ in range(number):
        assert killed(write_on, random.uniform(0, 2 * one_s))
        setting.look()


def main(folder: str, how: str, number: str = "0") -> None:
    """As the program's first lines say."""
    setting = Setting(Path(folder))
    if how == "calls":
        at_every_call(setting)
    else:
        at_random(setting, int(number))
    sys.stdout.write(json.dumps(setting.seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
