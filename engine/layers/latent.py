"""Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434) around the attention itself.

The products that make keys and values of the latent vector are absorbed: queries are multiplied by those of keys, and
what attention returns by those of values. So all query heads attend to one KV head of `rank + rotary_dim` numbers,
whose values are the same numbers, and nothing else of a token is kept.

A head's numbers are in the order of `engine.layers.decoder_weights.order_rotary`: its first half begins with the first
half of the rotated ones and goes on with the first half of the vector, its second half with the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import LatentConfig, ModelConfig
from engine.layers.linear import Projection
from kernels.rms_norm import rms_norm

NORM_EPS = 1e-6
"""Of the norms of both vectors, whatever the config says of the others."""


class LatentProjections:
    """What a layer does before and after attention. `latent_up`: [num_heads * (key_dim + value_dim), rank]."""

    def __init__(
        self,
        config: ModelConfig,
        latent: LatentConfig,
        query_norm: Tensor | None,
        query_up: Projection | None,
        latent_norm: Tensor,
        latent_up: Tensor,
    ) -> None:
        self._sizes = latent
        self._num_heads, self._head_dim = config.num_heads, config.head_dim
        self._rotary_dim = config.head_dim - latent.rank
        self._query_norm, self._query_up, self._latent_norm = query_norm, query_up, latent_norm
        parts = latent_up.view(config.num_heads, -1, latent.rank)
        keys, values = torch.split(parts, [latent.key_dim, latent.value_dim], dim=1)
        # as weights of projections, in whose products a row's place changes no bit
        self._keys = keys.transpose(1, 2).contiguous().transpose(1, 2)  # [num_heads, key_dim, rank]
        self._values = values.contiguous().transpose(1, 2)  # [num_heads, rank, value_dim]
        self.num_bytes = latent_up.nbytes + (0 if query_up is None else query_up.num_bytes)

    def make_heads(self, projected: Tensor) -> Tensor:
        """Turn rows of the first projections, [num_tokens, query part + head_dim], into heads before RoPE.

        Returns [num_tokens, num_heads + 1, head_dim]: absorbed queries, and the key.
        """
        queries, vector = torch.split(projected, [projected.shape[1] - self._head_dim, self._head_dim], dim=1)
        if self._query_norm is not None and self._query_up is not None:
            queries = self._query_up(rms_norm(queries.contiguous(), self._query_norm, NORM_EPS))
        heads = projected.new_empty(len(projected), self._num_heads + 1, self._head_dim)
        latent, rotated = self._view(heads)
        by_head = queries.view(len(projected), self._num_heads, -1)
        plain, turned = torch.split(by_head, [self._sizes.key_dim, self._rotary_dim], dim=2)
        absorbed = torch.bmm(plain.transpose(0, 1), self._keys).transpose(0, 1)
        latent[:, :-1] = absorbed.view(*absorbed.shape[:2], 2, -1)
        rotated[:, :-1] = torch.unflatten(turned, 2, (2, -1))
        own, key = torch.split(vector, [self._sizes.rank, self._rotary_dim], dim=1)
        latent[:, -1] = rms_norm(own.contiguous(), self._latent_norm, NORM_EPS).view(len(projected), 2, -1)
        rotated[:, -1] = torch.unflatten(key, 1, (2, -1))
        return heads

    def make_values(self, attended: Tensor) -> Tensor:
        """Turn what attention returns, [num_tokens, num_heads, head_dim], into [num_tokens, num_heads, value_dim]."""
        vectors = self._view(attended)[0].flatten(2)
        return torch.bmm(vectors.transpose(0, 1), self._values).transpose(0, 1).contiguous()

    def _view(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of the vectors, [num_tokens, num_heads, 2, rank / 2], and of the rotated parts in heads."""
        halves = torch.unflatten(heads, 2, (2, -1))
        return halves[..., self._rotary_dim // 2 :], halves[..., : self._rotary_dim // 2]


def order_halves(rows: Tensor, latent: LatentConfig, rotary_dim: int) -> Tensor:
    """Return rows of heads, [num_heads, rows of a head, in_features], whose last `rotary_dim` rows rotate in pairs of
    neighbours, so that the first half of these rotates with the second.
    """
    if not latent.is_interleaved:
        return rows
    plain, rotated = torch.split(rows, [rows.shape[1] - rotary_dim, rotary_dim], dim=1)
    return torch.cat([plain, rotated[:, 0::2], rotated[:, 1::2]], dim=1)
