"""A projection cut into tiles of its output features, for those who want to look at a tile at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.projections.choice import Store
from engine.projections.types import Projection


class Tiled:
    """Several projections of the same rows whose results stand side by side."""

    def __init__(self, tiles: Sequence[Projection]) -> None:
        self.tiles = tuple(tiles)
        self.out_features = sum(tile.out_features for tile in tiles)
        self.num_bytes = sum(tile.num_bytes for tile in tiles)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        return torch.cat([tile(x) for tile in self.tiles], dim=1)


def in_tiles(weight: Tensor, store: Store, num_features: int) -> Projection:
    """[out_features, in_features] stored in tiles of `num_features` rows, the last one shorter; a single one as it is.

    Elsewhere than on a CPU it is one tile: there, memory for logits costs nothing and a call more does.
    """
    if weight.device.type != "cpu" or len(weight) <= num_features:
        return store(weight, None)
    return Tiled([store(weight[start : start + num_features], None) for start in range(0, len(weight), num_features)])
