"""Cuts a file into spans, from scratch or from the spans of its last version, with the same result."""

from __future__ import annotations

from repo_cache.incremental import EncodedText, Reencoded
from repo_cache.spans import CutText


def cut(text: EncodedText, language: str | None, fingerprint: bytes) -> CutText:
    """Cut a file from scratch. `language` is `grammars.language_of(path)`, `fingerprint` the tokenizer's."""
    raise NotImplementedError


def recut(old: CutText, before: EncodedText, after: Reencoded, language: str | None, fingerprint: bytes) -> CutText:
    """Cut a file's next version: what `cut(after.text, ...)` gives, for the price of the blocks that changed.

    `old` is the cut of `before`, in the same language and by the same tokenizer; its `trees` may be empty.
    """
    raise NotImplementedError
