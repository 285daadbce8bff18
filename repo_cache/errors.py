"""Errors of the repository cache.

RepoCacheError
├── TokenizerError    a tokenizer description is damaged or of an unsupported kind
├── RootError         the root is not a readable folder
├── ForeignSnapshot   two snapshots belong to different folders or tokenizers
├── NotCached         a snapshot has no tokens of the path; the message says why
└── CacheClosed       the cache is closed
"""

from __future__ import annotations


class RepoCacheError(Exception):
    """The base of all errors of `repo_cache`."""


class TokenizerError(RepoCacheError):
    """The tokenizer cannot be built; the message says why."""


class RootError(RepoCacheError):
    """The root does not exist, is no folder, or cannot be read; the message says which."""


class ForeignSnapshot(RepoCacheError):
    """The snapshot belongs to another folder or another tokenizer."""


class NotCached(RepoCacheError):
    """There are no tokens of `path`; the message says why."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class CacheClosed(RepoCacheError):
    """The cache is closed; its snapshots remain valid."""
