"""Verification on the device: the likeliest tokens of all rows of a pass, and how many of its draft each confirms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from engine.cuda.staging import staged
from engine.model import Decoder
from engine.verification import Confirmed, Verification, verify
from kernels.accept import accept

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows of one side of a draft, and the draft's token behind each, NO_TOKEN behind the last."""

    hidden: Tensor
    draft: list[int]


def verify_on_device(model: Decoder, verifications: Sequence[Verification]) -> None:
    """As `engine.verification.verify`, in one pass of the LM head and one wait, where the likeliest tokens suffice.

    On a card the rows behind a departure cost less than to ask where it is. Who asks for more than the likeliest tokens
    gets it as on a CPU.
    """
    plain = [each for each in verifications if len(each.next_rows) and not each.wants_logits]
    if plain:
        found = iter(_chosen(model, [side for each in plain for side in _sides(each)]))
        for each in plain:
            each.take_all(next(found), None if each.branch is None else next(found))
    verify(model, verifications)  # what is left


def _sides(each: Verification) -> list[_Side]:
    """The draft's rows that are not settled, and its branch's."""
    first = len(each.chosen)
    sides = [_Side(each.hidden[first:], [*each.draft[first:], NO_TOKEN])]
    if each.branch is not None:
        sides.append(_Side(each.branch.hidden, [*each.branch.token_ids[1:], NO_TOKEN]))
    return sides


def _chosen(model: Decoder, sides: Sequence[_Side]) -> list[Confirmed]:
    logits = model.logits(torch.cat([each.hidden for each in sides]))
    borders = [0, *accumulate(len(each.hidden) for each in sides)]
    draft = np.array([token_id for each in sides for token_id in each.draft], dtype=np.int64)
    told = staged({"draft": draft, "row_starts": np.array(borders, dtype=np.int32)}, logits.device)
    accepted = accept(logits, told["draft"], told["row_starts"]).to_host()
    likeliest, counts = accepted.likeliest, accepted.num_accepted.tolist()
    return [
        Confirmed(likeliest.rows(first, end), count)
        for (first, end), count in zip(pairwise(borders), counts, strict=True)
    ]
