"""From hidden states to the likeliest tokens, and how many of a draft they confirm."""

from kernels.accept.accepted import Accepted, num_accepted
from kernels.accept.dispatch import accept
from kernels.accept.draws import Draws
from kernels.accept.likeliest import Likeliest
from kernels.accept.rows import likeliest_of
from kernels.accept.tiles import TILE, likeliest

__all__ = ["TILE", "Accepted", "Draws", "Likeliest", "accept", "likeliest", "likeliest_of", "num_accepted"]
