"""Opens files below a folder and never outside it, whatever is renamed or linked meanwhile.

A path is first resolved, with its symbolic links, and must end below the root. That check alone is no guard, since the
path may change a moment later. The guard is how the resolved path is opened: name by name from the root's descriptor,
following no link (`repo_cache.files.open_below`). All operations then use the descriptor. If a name has become a link
in between, opening fails, and the path is resolved again.

The root is trusted as named: a user who may replace the folders above it decides what it is. So does a user who moves
an open folder out of the root, which takes write access at both ends.
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
from agent_runtime.files import check_regular, read_descriptor
from repo_cache.files import FOLDER_FLAGS, PASSAGE_FLAGS, READ_FLAGS, ROOT_FLAGS, is_git, open_below

HAS_FOLDER_HANDLES = os.open in os.supports_dir_fd
"""False on Windows, which was never tried."""

NUM_LOOKS = 16
"""Attempts to resolve a path whose links change."""

BECAME_A_LINK = frozenset({errno.ELOOP, errno.ENOTDIR})
"""Errors of opening a resolved path if a name in it has become a link (or is in a loop, or is no folder)."""

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_LEVELS = 128
"""Limit of the names in a path below the root."""

ABSENT = ""
"""The digest of a path at which there is nothing."""

Found = TypeVar("Found")


class ConfinedFolder:
    """A root folder. `path` is a relative path as it was sent; `real` is one without links, '.' and '..'."""

    def __init__(self, root: Path) -> None:
        """Raises BadRequest if the root is not a folder."""
        if not HAS_FOLDER_HANDLES:
            raise BadRequest(
                "this system opens no files relative to a folder, which keeps a path in its root: here only "
                "`hunk apply FILE` edits files, one at a time",
                field="root",
            )
        self.root = root.resolve()
        if not self.root.is_dir():
            raise BadRequest(f"the root {root} is not a folder", field="root")

    def read(self, path: str) -> bytes:
        """Read a file; raises OutsideRoot, FileMissing, TooLarge or BadFile."""
        return self.call_with_real_path(path, lambda real: read_descriptor(self._open_file(real, path), path))

    def call_with_real_path(self, path: str, act: Callable[[str], Found]) -> Found:
        """Call `act` with the real path; if a name in it has become a link, resolve it and call again.

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
        """Return the real path; names that do not exist stay. "" is the root.

        Without `follow_last` a link in the last place is not followed. Raises OutsideRoot, or BadRequest.
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
        """Return the digest of a real path (`read_digest_at`), `ABSENT` if its folder is missing; raises OSError."""
        try:
            with self.open_parent(real) as (folder, name):
                return read_digest_at(folder, name)
        except FileNotFoundError:
            return ABSENT

    @contextlib.contextmanager
    def open_parent(self, real: str) -> Iterator[tuple[int, str]]:
        """Open the folder of a real path; yields its descriptor and the name in it. Raises OSError."""
        folder, _, name = real.rpartition("/")
        descriptor = open_below(self.root, folder, PASSAGE_FLAGS)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def open_parents(self, real: str) -> Iterator[tuple[str, int]]:
        """Open the existing folders of a real path from the root down; yields paths and descriptors. Raises OSError."""
        at, folder = os.open(self.root, ROOT_FLAGS), ""
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
        """Return the missing folders of a real path, the outermost first; raises OSError."""
        names = real.split("/")[:-1]
        num_there = sum(1 for _ in self.open_parents(real)) - 1
        return ["/".join(names[: end + 1]) for end in range(num_there, len(names))]

    def make_folder(self, real: str) -> None:
        """Make one folder unless it exists; raises OSError."""
        with self.open_parent(real) as (folder, name):
            try:
                os.mkdir(name, dir_fd=folder)
            except FileExistsError:
                os.close(open_below(self.root, real, PASSAGE_FLAGS))

    def remove_folder(self, real: str) -> None:
        """Remove one folder; raises OSError if it is not empty, or missing."""
        with self.open_parent(real) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def sync_folder(self, real: str) -> None:
        """Put the names in a folder on the disk, so that they survive a power cut; raises OSError."""
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
            check_regular(state, path)  # before opening, which alone can start a device
            return os.open(name, READ_FLAGS, dir_fd=folder)


def _resolve_links(path: Path) -> Path:
    """Follow a path's links; raises BadFile if they keep changing. Links in a loop stay, and opening fails later."""
    for _ in range(NUM_LOOKS):
        with contextlib.suppress(OSError):  # a link was removed meanwhile
            return Path(os.path.realpath(path))
    raise BadFile(f"cannot read {path.name}: its links change all the time")


def is_below(path: Path, root: Path) -> bool:
    """Whether a resolved path is the root or below it, and not in a `.git`."""
    return path.is_relative_to(root) and not any(is_git(name) for name in path.relative_to(root).parts)


def _check_length(path: str) -> None:
    """Raise BadFile for a path so long, or so deep, that other programs could not remove it."""
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
    """Return the SHA-256 of a file in an open folder, `ABSENT`, or a text that is no hash for anything else.

    A link's digest is that of its target's path. Raises OSError.
    """
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(state.st_mode):
            return "link to " + sha256(os.fsencode(os.readlink(name, dir_fd=folder))).hexdigest()
        if not stat.S_ISREG(state.st_mode):
            return "no file"
        return sha256(read_descriptor(os.open(name, READ_FLAGS, dir_fd=folder), name)).hexdigest()
    except FileNotFoundError:
        return ABSENT
    except TooLarge:
        return "too large"
