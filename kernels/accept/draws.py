"""What a token is drawn with: for each row a temperature and a number of the request's random stream."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

LEAST_TEMPERATURE = 1e-30
"""Below it float32 would divide by zero; any temperature so small is greedy."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Row r draws the token that `numbers[r]` falls on when the weights `exp((logit - largest) / temperatures[r])` are
    laid side by side in the order of their ids; where its temperature is 0 it takes the likeliest. A weight of 0 is
    never drawn.
    """

    temperatures: Tensor  # float32 [num_rows]
    numbers: Tensor  # float64 [num_rows], in [0, 1)
