"""What the repository cache refuses.

RepoCacheError
└── TokenizerError    a tokenizer description that is damaged or of an unsupported kind
"""

from __future__ import annotations


class RepoCacheError(Exception):
    """The root of what `repo_cache` raises."""


class TokenizerError(RepoCacheError):
    """The tokenizer cannot be built; the message says why."""
