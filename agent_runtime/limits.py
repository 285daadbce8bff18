"""The sizes beyond which a file or an edit is refused, in one place."""

from __future__ import annotations

from pathlib import Path
from stat import S_ISDIR, S_ISREG

from agent_runtime.errors import BadFile, FileMissing, TooLarge

MAX_FILE_BYTES = 8 << 20
"""Source files are far smaller; a larger one is data, and a mistake."""

MAX_EDIT_BYTES = 2 << 20


def read_file(path: Path) -> bytes:
    """The bytes of a regular file; raises FileMissing, TooLarge or BadFile with what to do."""
    try:
        stat = path.stat()
        if S_ISDIR(stat.st_mode):
            raise BadFile(f"{path} is a directory; name a file in it")
        if not S_ISREG(stat.st_mode):
            raise BadFile(f"{path} is not a regular file")
        check_size(stat.st_size, str(path), MAX_FILE_BYTES)
        return path.read_bytes()
    except FileNotFoundError:
        raise FileMissing(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise BadFile(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def check_size(num_bytes: int, what: str, limit: int) -> None:
    """Raise TooLarge where `num_bytes` is over `limit`."""
    if num_bytes > limit:
        raise TooLarge(f"{what} is {num_bytes / 1e6:.1f} MB; the limit is {limit / 1e6:.1f} MB")
