"""Opens files below a folder and never outside it, whatever is renamed or linked meanwhile.

A path is resolved first, with its symbolic links, and has to end below the root. That look is no guard, as what it saw
may be something else a moment later. The guard is how the resolved path is opened then: from the root's descriptor
name by name, following no link (`repo_cache.files.open_below`); and what is done is done through the descriptor that
came of it. A link that comes up in between is met as a link, and the path is resolved anew.

The root is taken as it was named: whoever may replace the folders above it decides what it is. So does whoever moves an
open folder out of the root, for which one has to be allowed to write at both ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from agent_runtime.errors import BadFile, BadRequest, FileMissing, OutsideRoot, TooLarge
from agent_runtime.limits import bytes_of, check_regular
from repo_cache.files import FOLDER_FLAGS, PASSAGE_FLAGS, READ_FLAGS, is_git, open_below

NUM_LOOKS = 16
"""Times that a path is resolved; whose links change that often leads nowhere."""

BECAME_A_LINK = frozenset({errno.ELOOP, errno.ENOTDIR})
"""How opening a resolved path fails where a name in it is a link by now (or leads in a circle, or is no folder)."""

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_LEVELS = 128
"""Names of a path below the root."""

ABSENT = ""
"""The mark of a path at which nothing stands."""

Found = TypeVar("Found")


class ConfinedFolder:
    """A folder, and paths relative to it: as they were sent, or `real`, which holds no link, no '.' and no '..'."""

    def __init__(self, root: Path) -> None:
        """Raises BadRequest where the root is no folder."""
        self.root = root.resolve()
        if not self.root.is_dir():
            raise BadRequest(f"the root {root} is not a folder", field="root")

    def read(self, path: str) -> bytes:
        """A file's bytes; raises OutsideRoot, FileMissing, TooLarge or BadFile."""
        return self.call_with_real_path(path, lambda real: bytes_of(self._open_file(real, path), path))

    def call_with_real_path(self, path: str, act: Callable[[str], Found]) -> Found:
        """What `act` makes of the real path; again with what it is then, where a name of it became a link.

        Raises OutsideRoot, BadRequest, FileMissing or BadFile.
        """
        for looks_left in reversed(range(NUM_LOOKS)):
            try:
                return act(self.resolve(path))
            except FileNotFoundError:
                raise FileMissing(f"there is no file {path}") from None
            except OSError as error:
                if error.errno not in BECAME_A_LINK or not looks_left:
                    raise BadFile(f"cannot read {path}: {error.strerror or error}") from error
        raise AssertionError("the last look returns or raises")

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """The path without links, as far as it is there; a link in the last place may stay. "" is the root.

        Raises OutsideRoot, or BadRequest.
        """
        if "\0" in path or not path:
            raise BadRequest("path is empty or holds a NUL", field="path")
        _check_length(path)
        if Path(path).is_absolute():
            raise OutsideRoot(f"path {path} is absolute; give it relative to the root")
        asked = self.root / path
        found = _resolve_links(asked if follow_last else asked.parent)
        if not follow_last:
            found = Path(os.path.normpath(found / asked.name))
        if not is_below(found, self.root):
            raise OutsideRoot(f"path {path} leads out of the root, or into .git, from which git runs programs")
        real = "/".join(found.relative_to(self.root).parts)
        _check_length(real)
        return real

    def read_digest(self, real: str) -> str:
        """What stands at a real path now (`read_digest_at`), `ABSENT` where its folder is not there; raises OSError."""
        try:
            with self.open_parent(real) as (folder, name):
                return read_digest_at(folder, name)
        except FileNotFoundError:
            return ABSENT

    @contextlib.contextmanager
    def open_parent(self, real: str) -> Iterator[tuple[int, str]]:
        """The descriptor of a real path's folder, and the name there; raises OSError."""
        folder, _, name = real.rpartition("/")
        descriptor = open_below(self.root, folder, PASSAGE_FLAGS)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def open_parents(self, real: str) -> Iterator[tuple[str, int]]:
        """The folders of a real path that are there and their descriptors, from the root down; raises OSError."""
        at, folder = os.open(self.root, PASSAGE_FLAGS & ~os.O_NOFOLLOW), ""
        try:
            yield folder, at
            for name in real.split("/")[:-1]:
                try:
                    below = os.open(name, PASSAGE_FLAGS, dir_fd=at)
                except FileNotFoundError:
                    return
                os.close(at)
                at, folder = below, f"{folder}/{name}".lstrip("/")
                yield folder, at
        finally:
            os.close(at)

    def find_missing_folders(self, real: str) -> list[str]:
        """Which folders of a real path are not there, the outermost first; raises OSError."""
        names = real.split("/")[:-1]
        num_there = sum(1 for _ in self.open_parents(real)) - 1
        return ["/".join(names[: end + 1]) for end in range(num_there, len(names))]

    def make_folder(self, real: str) -> None:
        """Make one folder, if it is not there; raises OSError."""
        with self.open_parent(real) as (folder, name):
            try:
                os.mkdir(name, dir_fd=folder)
            except FileExistsError:
                os.close(open_below(self.root, real, PASSAGE_FLAGS))

    def remove_folder(self, real: str) -> None:
        """Remove one folder; raises OSError where it is not empty, or not there."""
        with self.open_parent(real) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def sync_folder(self, real: str) -> None:
        """Have the names in a folder last through a power cut; raises OSError."""
        descriptor = open_below(self.root, real, FOLDER_FLAGS)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open_file(self, real: str, path: str) -> int:
        with self.open_parent(real) as (folder, name):
            state = os.stat(name or ".", dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(state.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            check_regular(state, path)  # what is no file is not opened: that alone can set a device going
            return os.open(name, READ_FLAGS, dir_fd=folder)


def _resolve_links(path: Path) -> Path:
    """The path with its links followed, as far as it is there; raises BadFile where they change all the time.

    Links that lead in a circle stay: opening the path fails then.
    """
    for _ in range(NUM_LOOKS):
        with contextlib.suppress(OSError):  # a link went between two of its looks
            return Path(os.path.realpath(path))
    raise BadFile(f"cannot read {path.name}: its links change all the time")


def is_below(path: Path, root: Path) -> bool:
    """Whether a resolved path is the root or in it, and not in a `.git` of it."""
    return path.is_relative_to(root) and not any(is_git(name) for name in path.relative_to(root).parts)


def _check_length(path: str) -> None:
    """Raise BadFile for a path that is so long, or so deep, that other programs could not remove what is there."""
    names = path.split("/")
    num_bytes = len(path.encode(errors="surrogatepass"))
    if num_bytes > MAX_PATH_BYTES or len(names) > MAX_LEVELS:
        raise BadFile(
            f"the path {path[:64]}... has {num_bytes} bytes and {len(names)} names; the limits are {MAX_PATH_BYTES} "
            f"and {MAX_LEVELS}"
        )
    if any(len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES for name in names):
        raise BadFile(f"the path {path[:64]}... holds a name of more than {MAX_NAME_BYTES} bytes")


def read_digest_at(folder: int, name: str) -> str:
    """What stands at a name in an open folder: a file's SHA-256, `NOTHING`, or a mark that no file has; raises OSError.

    A link's mark is of where it leads to.
    """
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(state.st_mode):
            return "link to " + sha256(os.fsencode(os.readlink(name, dir_fd=folder))).hexdigest()
        if not stat.S_ISREG(state.st_mode):
            return "no file"
        return sha256(bytes_of(os.open(name, READ_FLAGS, dir_fd=folder), name)).hexdigest()
    except FileNotFoundError:
        return ABSENT
    except TooLarge:
        return "too large"
