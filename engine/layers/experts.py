"""A mixture of experts: a router chooses a few small feed-forward parts for each token (Shazeer et al. 2017, arXiv
1701.06538).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import ExpertsConfig
from engine.layers.linear import Projection

Activation = Callable[[Tensor], Tensor]
"""Of a fused projection: [num_rows, 2 * ffn_size] -> [num_rows, ffn_size]."""


class Experts:
    """Experts with a projection each. Those that no token has chosen are not read."""

    def __init__(
        self,
        config: ExpertsConfig,
        router: Projection,
        gate_up: Sequence[Projection],
        down: Sequence[Projection],
        *,
        correction: Tensor | None = None,
        shared: Sequence[Projection] = (),
    ) -> None:
        """router: hidden_size -> num_experts. Of each expert, and of the part for all tokens, `shared`: hidden_size ->
        2 * ffn_size, ffn_size -> hidden_size. correction: float32 [num_experts], for a choice by sigmoid.
        """
        self.config = config
        self._router = router
        self._gate_up = gate_up
        self._down = down
        self._correction = correction
        self._shared = tuple(shared)
        sizes = [each.num_bytes for part in (gate_up, down) for each in part]
        self.num_bytes = router.num_bytes + sum(sizes) * config.num_used // config.num_experts
        self.num_bytes += sum(each.num_bytes for each in self._shared)

    def __call__(self, x: Tensor, activate: Activation, pad: int = 1) -> Tensor:
        """Rows [num_rows, hidden_size] -> the same shape. Rows of an expert are padded to a multiple of `pad`.

        The results of a row's experts are added in the order of their numbers, so that its sum does not depend on the
        other rows.
        """
        weights, chosen = self.route(x)
        out = self._begin_sum(x, activate)
        pairs = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.config.num_experts).tolist()
        all_rows, all_weights = pairs // self.config.num_used, weights.flatten()[pairs, None]
        first = 0
        for expert, count in enumerate(counts):
            if count:
                own = slice(first, first + count)
                rows, first = all_rows[own], own.stop
                padded = F.pad(x[rows], (0, 0, 0, -count % pad))
                results = self._down[expert](activate(self._gate_up[expert](padded)))[:count]
                out.index_add_(0, rows, results * all_weights[own])
        return out

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's experts and their weights, in the dtype of `x`: [num_rows, num_used] each."""
        config, logits = self.config, self._router(x)
        if config.scoring == "sigmoid":
            assert self._correction is not None, "such a layer has one"
            shares = logits.float().sigmoid()
            ranks = shares + self._correction
        else:
            ranks = shares = logits.softmax(dim=-1, dtype=torch.float32)
        if config.num_groups_used < config.num_groups:
            ranks = self._hide_groups(ranks)
        chosen = ranks.topk(config.num_used, dim=-1).indices
        weights = shares.gather(-1, chosen)
        if config.is_normalised:
            weights /= weights.sum(dim=-1, keepdim=True)
        return weights.mul_(config.scale).to(x.dtype), chosen

    def _hide_groups(self, ranks: Tensor) -> Tensor:
        """Return ranks, [num_rows, num_experts], that are -inf in all but the best groups of each row."""
        groups = ranks.view(len(ranks), self.config.num_groups, -1)
        best = groups.topk(2 if self.config.scoring == "sigmoid" else 1, dim=-1).values.sum(dim=-1)
        used = best.topk(self.config.num_groups_used, dim=-1).indices
        hidden = torch.ones_like(best, dtype=torch.bool).scatter_(-1, used, 0)
        kept: Tensor = groups.masked_fill(hidden[..., None], float("-inf"))
        return kept.flatten(-2)

    def _begin_sum(self, x: Tensor, activate: Activation) -> Tensor:
        """Return what every row gets beside the results of its experts, [num_rows, hidden_size]."""
        if not self._shared:
            return torch.zeros_like(x)
        gate_up, down = self._shared
        return down(activate(gate_up(x)))


class GroupedExperts(Experts):
    """Experts whose weights lie in one tensor, for a card: one product for all of them.

    In bf16 on a card of the generation Hopper or later, torch has a kernel for it, which waits for nobody. Otherwise it
    asks the card how many rows each expert has (pytorch/pytorch #169970), and cannot be captured.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        router: Projection,
        gate_up: Tensor,
        down: Tensor,
        *,
        correction: Tensor | None = None,
        shared: Sequence[Projection] = (),
    ) -> None:
        """gate_up: [num_experts, 2 * ffn_size, hidden_size]. down: [num_experts, hidden_size, ffn_size]. Others: as of
        `Experts`.
        """
        super().__init__(config, router, (), (), correction=correction, shared=shared)
        self._matrices = gate_up.transpose(1, 2), down.transpose(1, 2)
        self.num_bytes += (gate_up.nbytes + down.nbytes) * config.num_used // config.num_experts

    def __call__(self, x: Tensor, activate: Activation, pad: int = 1) -> Tensor:
        """As `Experts.__call__`; of `pad` only 1."""
        assert pad == 1, "only a CPU pads"
        weights, chosen = self.route(x)
        pairs = chosen.flatten().argsort(stable=True)
        counts = F.one_hot(chosen.flatten(), self.config.num_experts).sum(dim=0)
        ends = counts.cumsum(dim=0).to(torch.int32)
        gate_up, down = self._matrices
        rows = x[pairs // self.config.num_used]
        results = F.grouped_mm(activate(F.grouped_mm(rows, gate_up, offs=ends)), down, offs=ends)
        by_pair = torch.empty_like(results).index_copy_(0, pairs, results).view(*chosen.shape, -1)
        out = (by_pair * weights[..., None]).sum(dim=1)
        return out.add_(self._begin_sum(x, activate)) if self._shared else out
