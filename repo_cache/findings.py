"""What a look at files has found, and the snapshot that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from repo_cache.snapshot import Snapshot
from repo_cache.types import FileTokens


@dataclass(slots=True)
class Findings:
    """What an update finds, by path."""

    tokens: dict[str, FileTokens] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    encoded: dict[str, int] = field(default_factory=dict)


def next_snapshot(before: Snapshot, found: Findings) -> Snapshot:
    """`before` itself where nothing changed."""
    tokens = {path: one for path, one in found.tokens.items() if before.files.get(path) is not one}
    skipped = {path: why for path, why in found.skipped.items() if before.skipped.get(path) != why}
    out = {path for path in (*found.gone, *found.skipped) if path in before.files}
    in_again = {path for path in (*found.gone, *found.tokens) if path in before.skipped}
    if not (tokens or skipped or out or in_again):
        return before
    num_tokens = before.num_tokens + sum(len(one) for one in tokens.values())
    num_tokens -= sum(len(before.files[path]) for path in {*tokens, *out} if path in before.files)
    return Snapshot(
        before.root,
        before.fingerprint,
        before.version + 1,
        before.files.updated(tokens, frozenset(out)),
        before.skipped.updated(skipped, frozenset(in_again)),
        num_tokens,
    )
