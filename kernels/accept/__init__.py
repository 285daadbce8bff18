"""From hidden states to the likeliest tokens, and how many of a draft they confirm."""

from kernels.accept.accepted import num_accepted
from kernels.accept.likeliest import Likeliest
from kernels.accept.rows import likeliest_of
from kernels.accept.tiles import TILE, likeliest

__all__ = ["TILE", "Likeliest", "likeliest", "likeliest_of", "num_accepted"]
