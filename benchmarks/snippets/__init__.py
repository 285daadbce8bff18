"""Lazy snippets made from real edits, and larger merges made of several edits."""

from benchmarks.snippets.imitations import imitate, make_imitations
from benchmarks.snippets.merges import Pair, make_merge, read_pairs
from benchmarks.snippets.styles import STYLES, make_snippet

__all__ = ["STYLES", "Pair", "imitate", "make_imitations", "make_merge", "make_snippet", "read_pairs"]
