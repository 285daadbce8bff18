"""Keys and values that go to other slots of their own pool as they are: a page that is copied, a branch that was taken.

torch needs two launches a tensor for it, which for 28 layers are 112; of a few tokens, that is all the time it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels.backend import runs_triton


def move_layers(keys: Sequence[Tensor], values: Sequence[Tensor], source_slots: Tensor, target_slots: Tensor) -> None:
    """Copy what lies in some slots of a pool to as many others, in every layer; the two may overlap.

    keys and values: a layer's [num_slots, num_kv_heads, head_dim] each, contiguous. source_slots, target_slots: int64
    [num_tokens], on their device, of the latter no two the same.
    """
    tensors = [*keys, *values]
    if runs_triton(tensors[0]):
        from kernels.span_placement.kernel import MOST_MOVED, launch_move

        if len(source_slots) <= MOST_MOVED:
            launch_move(tensors, source_slots, target_slots)
            return
    for each in tensors:
        each.index_copy_(0, target_slots, each.index_select(0, source_slots))
