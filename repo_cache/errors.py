"""What the repository cache refuses.

RepoCacheError
├── TokenizerError    a tokenizer description that is damaged or of an unsupported kind
├── RootError         what was to be opened is not a folder that can be read
├── ForeignSnapshot   two snapshots of different folders or tokenizers have nothing to compare
├── NotCached         a snapshot has no tokens of the path; the message says why
└── CacheClosed       the cache was closed before
"""

from __future__ import annotations


class RepoCacheError(Exception):
    """The root of what `repo_cache` raises."""


class TokenizerError(RepoCacheError):
    """The tokenizer cannot be built; the message says why."""


class RootError(RepoCacheError):
    """The root is not there, is no folder, or cannot be read; the message says which."""


class ForeignSnapshot(RepoCacheError):
    """A snapshot of another folder or another tokenizer was given."""


class NotCached(RepoCacheError):
    """There are no tokens of this path; the message says why, `path` which."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class CacheClosed(RepoCacheError):
    """The cache was closed; its snapshots remain good."""
