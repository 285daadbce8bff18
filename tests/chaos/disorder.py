"""A process that changes a folder at random: `python -m tests.chaos.disorder FOLDER SEED`; its input says how often.

Each line of its input is a number of operations; when they are done it answers with a JSON object that counts them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

PIECES = (
    "def area(radius):\n    return 3.14159 * radius * radius\n",
    "class Café:\n\n    def __init__(self, preis: float) -> None:\n        self.preis = preis\n",
    "# ¥ \U0001f469\u200d\U0001f4bb\n",
    "\n\n\n    \t\n",
    "import os\nimport sys\r\nimport re\n",
    "x = [1, 22, 333, 4444]\n" * 30,
    "# 漢字とかな混じり文\n",
    "if (broken:\n    )]}\n",
    "it's don't we'll\n",
)
SUFFIXES = (".py", ".js", ".md", ".txt", ".json", ".yaml", "", ".log", ".tmp", "~")
PATTERNS = ("*.log\n", "*.tmp\n!keep.tmp\n", "sub_1/\n", "*~\n", "# nothing\n", "/*.md\n", "**/sub_2/*.py\n", "")
MOST_FILES = 400


class Disorder:
    """Random operations on the files of a folder, as editors, tools and git make them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._number = 0
        self.counts: Counter[str] = Counter()

    def run(self, count: int) -> None:
        """So many operations, in bursts with short pauses between."""
        operations: list[tuple[Callable[[], None], int]] = [
            (self._create, 20),
            (self._edit, 30),
            (self._replace, 15),
            (self._delete, 8),
            (self._rename, 8),
            (self._copy, 4),
            (self._rename_folder, 2),
            (self._delete_folder, 1),
            (self._ignore, 2),
            (self._link, 2),
            (self._commit, 1),
            (self._checkout, 2),
        ]
        calls, weights = zip(*operations, strict=True)
        for _ in range(count):
            (operation,) = self._random.choices(calls, weights)
            self.counts[operation.__name__.strip("_")] += 1
            try:
                operation()
            except (OSError, subprocess.CalledProcessError):  # the file is a folder by now, or gone, or git is at odds
                self.counts["refused"] += 1
            if self._random.random() < 0.1:
                time.sleep(self._random.choice((0.001, 0.01, 0.06)))

    def _create(self) -> None:
        if len(self._files()) > MOST_FILES:
            self._delete()
            return
        self._number += 1
        folder = self._some_folder()
        if self._random.random() < 0.2:
            folder /= f"sub_{self._random.randrange(4)}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file_{self._number}{self._random.choice(SUFFIXES)}").write_bytes(self._data())

    def _edit(self) -> None:
        """In place: truncated, then written in two parts."""
        path = self._some_file()
        if path.is_symlink():
            return  # nothing outside of the folder is ever written
        lines = path.read_bytes().splitlines(keepends=True)
        at = self._random.randrange(len(lines) + 1)
        lines[at : at + self._random.randrange(3)] = [self._random.choice(PIECES).encode()]
        with path.open("wb", buffering=0) as file:
            file.write(b"".join(lines[:at]))
            file.write(b"".join(lines[at:]))

    def _replace(self) -> None:
        """As editors save: a file beside it, renamed over it; sometimes with a backup."""
        path = self._some_file()
        data = path.read_bytes() + self._data()
        if self._random.random() < 0.3:
            shutil.copy2(path, path.with_name(path.name + "~"))
        beside = path.with_name(f".{path.name}.swp")
        beside.write_bytes(data[-4000:])
        beside.replace(path)

    def _delete(self) -> None:
        self._some_file().unlink()

    def _rename(self) -> None:
        path = self._some_file()
        self._number += 1
        path.rename(self._some_folder() / f"moved_{self._number}{path.suffix}")

    def _copy(self) -> None:
        path = self._some_file()
        self._number += 1
        shutil.copy2(path, self._some_folder() / f"copy_{self._number}{path.suffix}")

    def _rename_folder(self) -> None:
        self._number += 1
        self._some_folder(within=True).rename(self._some_folder() / f"folder_{self._number}")

    def _delete_folder(self) -> None:
        shutil.rmtree(self._some_folder(within=True))

    def _ignore(self) -> None:
        (self._some_folder() / ".gitignore").write_text(self._random.choice(PATTERNS), encoding="utf-8")

    def _link(self) -> None:
        self._number += 1
        target = self._random.choice([self._some_file(), Path("/dev/null"), Path("nowhere"), self._some_folder()])
        (self._some_folder() / f"link_{self._number}.py").symlink_to(target)

    def _commit(self) -> None:
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message=chaos")
        self._git("branch", "--force", f"branch-{self._random.randrange(4)}")

    def _checkout(self) -> None:
        self._git("checkout", "--quiet", "--force", f"branch-{self._random.randrange(4)}")

    def _git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=chaos", "-c", "user.email=chaos@localhost", "-c", "gc.auto=0"]
        subprocess.run(["git", *identity, *arguments], cwd=self._folder, check=True, capture_output=True)

    def _data(self) -> bytes:
        kind = self._random.random()
        if kind < 0.03:
            return b"\0binary\xff" * 20
        if kind < 0.06:
            return b"not \xff\xfe UTF-8\n"
        if kind < 0.09:
            return b""
        return "".join(self._random.choices(PIECES, k=self._random.randint(1, 8))).encode()

    def _files(self) -> list[Path]:
        found = []
        for place, folders, files in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if name != ".git")
            found += [Path(place, name) for name in sorted(files)]
        return found

    def _some_file(self) -> Path:
        files = self._files()
        if not files:
            raise FileNotFoundError
        return self._random.choice(files)

    def _some_folder(self, *, within: bool = False) -> Path:
        found = [] if within else [self._folder]
        for place, folders, _ in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if name != ".git")
            found += [Path(place, name) for name in folders]
        if not found:
            raise FileNotFoundError
        return self._random.choice(found)


def main() -> None:
    """Follow the input until it ends."""
    disorder = Disorder(Path(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        disorder.run(int(line))
        print(json.dumps(disorder.counts), flush=True)


if __name__ == "__main__":
    main()
