"""Which of the files that came are files that went: the same content, or most of the same spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from repo_cache.types import FileTokens

MAX_COMPARED = 100
"""Files that came or went, beyond which spans are not compared: a branch switch of thousands would cut them all."""

LEAST_SHARE = 0.5
"""Of the larger file's tokens that must lie in spans of both, as git asks for half of the lines."""


def find_renames(removed: Mapping[str, FileTokens], added: Mapping[str, FileTokens]) -> dict[str, str]:
    """New path -> old path; no path is in two pairs, the most alike are paired first."""
    renames = _same_content(removed, added)
    taken = set(renames.values())
    old = {path: tokens for path, tokens in removed.items() if path not in taken and len(tokens)}
    new = {path: tokens for path, tokens in added.items() if path not in renames and len(tokens)}
    if max(len(old), len(new)) > MAX_COMPARED:
        return renames
    for _, old_path, new_path in sorted(_alike(old, new), key=lambda pair: (-pair[0], pair[1:])):
        if new_path not in renames and old_path not in taken:
            renames[new_path] = old_path
            taken.add(old_path)
    return renames


def _same_content(removed: Mapping[str, FileTokens], added: Mapping[str, FileTokens]) -> dict[str, str]:
    by_hash: dict[str, list[str]] = {}
    for path in sorted(removed, reverse=True):
        by_hash.setdefault(removed[path].content_hash, []).append(path)
    renames = {}
    for path in sorted(added):
        sources = by_hash.get(added[path].content_hash)
        if sources:
            name = path.rpartition("/")[2]
            source = next((one for one in sources if one.rpartition("/")[2] == name), sources[-1])
            sources.remove(source)
            renames[path] = source
    return renames


def _alike(old: Mapping[str, FileTokens], new: Mapping[str, FileTokens]) -> list[tuple[float, str, str]]:
    """Pairs (share, old path, new path) that have enough in common."""
    if not old or not new:
        return []
    where: dict[bytes, list[tuple[str, int]]] = {}
    for path, tokens in old.items():
        for key, length in _lengths(tokens).items():
            where.setdefault(key, []).append((path, length))
    found = []
    for new_path, tokens in new.items():
        shared: Counter[str] = Counter()
        for key, length in _lengths(tokens).items():
            for old_path, old_length in where.get(key, ()):
                shared[old_path] += min(length, old_length)
        for old_path, length in shared.items():
            share = length / max(len(tokens), len(old[old_path]))
            if share >= LEAST_SHARE:
                found.append((share, old_path, new_path))
    return found


def _lengths(tokens: FileTokens) -> Counter[bytes]:
    """Tokens in the spans of each key."""
    spans = tokens.spans
    lengths: Counter[bytes] = Counter()
    for key, length in zip(spans.key_list(), np.diff(spans.ends, prepend=np.uint32(0)).tolist(), strict=True):
        lengths[key] += length
    return lengths
