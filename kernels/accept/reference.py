"""How much of a draft the model confirms, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def num_accepted(targets: Tensor, draft: Tensor) -> int:
    """Length of the longest prefix of `draft` that equals what the model chose there.

    targets: int64 [num_draft + 1], the model's choice behind the last known token and behind every draft token;
    draft: int64 [num_draft]. Example: targets [5, 6, 9, 3] against draft [5, 6, 7] -> 2; token 9 comes for free.
    """
    agree = (targets[:-1] == draft).cumprod(dim=0)
    return int(agree.sum())
