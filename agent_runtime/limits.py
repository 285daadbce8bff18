"""The sizes beyond which a file or an edit is refused, in one place."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from agent_runtime.errors import BadFile, FileMissing, TooLarge

MAX_FILE_BYTES = 8 << 20
"""Source files are far smaller; a larger one is data, and a mistake."""

MAX_EDIT_BYTES = 2 << 20

OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""A pipe that took the file's place is not waited for."""


def read_file(path: Path) -> bytes:
    """The bytes of a regular file; raises FileMissing, TooLarge or BadFile with what to do."""
    try:
        check_regular(path.stat(), str(path))  # what is no file is not opened: that alone can set a device going
        return bytes_of(os.open(path, OPEN_FLAGS), str(path))
    except FileNotFoundError:
        raise FileMissing(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise BadFile(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def bytes_of(descriptor: int, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """All bytes of an open file, which is closed; raises TooLarge, BadFile where it is no regular file, or OSError.

    Looks at what was opened, which need not be what was looked at before; reads no more than the limit and one byte,
    however the file grows meanwhile.
    """
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        state = os.fstat(descriptor)
        check_regular(state, name)
        check_size(state.st_size, name, limit)
        data = bytearray()
        while len(data) <= limit and (more := file.read(min(limit + 1 - len(data), max(state.st_size, 1) + 1))):
            data += more
    check_size(len(data), name, limit)
    return bytes(data)


def check_regular(state: os.stat_result, name: str) -> None:
    """Raise BadFile for a folder, a pipe, a device, a link."""
    if S_ISDIR(state.st_mode):
        raise BadFile(f"{name} is a directory; name a file in it")
    if not S_ISREG(state.st_mode):
        raise BadFile(f"{name} is not a regular file")


def check_size(num_bytes: int, what: str, limit: int) -> None:
    """Raise TooLarge where `num_bytes` is over `limit`."""
    if num_bytes > limit:
        raise TooLarge(f"{what} is {num_bytes / 1e6:.1f} MB; the limit is {limit / 1e6:.1f} MB")
