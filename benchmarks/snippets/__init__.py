"""Lazy snippets made from real edits, in the styles that models write, and larger merges put together from them."""

from benchmarks.snippets.imitations import imitate, imitations
from benchmarks.snippets.making import STYLES, make_snippet
from benchmarks.snippets.merges import merges
from benchmarks.snippets.pairs import Pair, pairs

__all__ = ["STYLES", "Pair", "imitate", "imitations", "make_snippet", "merges", "pairs"]
