"""The decoder of one rank: its layers' results are summed over all ranks, and its LM head has a part of the vocabulary.

Sums take time on the link. Two ways hide it behind products, both without reading a weight twice:

- in parts: the projections out of attention and out of the feed-forward part compute some of their columns at a time,
  and a part is summed while the next one is computed;
- in halves: two halves of the rows take turns, and what one has computed is summed while the other computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.decoder import Decoder, LayerOps
from engine.errors import RankLost
from engine.layers import Experts, Projection, Quantization
from engine.layers.decoder_weights import Store
from engine.tensor_parallel.group import Command, RankGroup, Work
from engine.tensor_parallel.shard import Shard
from engine.weights.parameters import Parameters
from kernels.accept import TopTokens

Overlap = Literal["none", "parts", "halves"]
OVERLAPS: tuple[Overlap, ...] = ("none", "parts", "halves")

NUM_PARTS = 4
"""Parts of the columns of a projection whose sums go beside the next part's product."""


class SplitProjection:
    """A projection in parts of its columns; each is summed over all ranks as soon as it is computed, if `sums`."""

    def __init__(self, parts: Sequence[Projection], group: RankGroup) -> None:
        self._parts = parts
        self._group = group
        self.sums = False
        self.out_features = sum(part.out_features for part in parts)
        self.num_bytes = sum(part.num_bytes for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        found, works = list[Tensor](), list[Work]()
        for part in self._parts:
            found.append(part(x))
            if self.sums:
                works.append(self._group.start_sum(found[-1]))
        for work in works:
            self._group.finish(work)
        return torch.cat(found, dim=1)


class ShardDecoder(Decoder):
    """The decoder of one rank. On the first rank `likeliest` and `logits` have the other ranks compute their parts."""

    def __init__(
        self,
        parameters: Parameters,
        quantize: Quantization | None = None,
        activations: torch.dtype | None = None,
        reason: str = "as asked",
        *,
        group: RankGroup,
        kv_int8: bool = False,
    ) -> None:
        """`parameters`: of this rank (`load_shard`). Others: as of `Decoder`."""
        self.group = group
        self._splits: list[SplitProjection] = []
        self._overlap: Overlap = "none"
        super().__init__(parameters, quantize, activations, reason, kv_int8=kv_int8)
        self.on_close: Callable[[], None] = group.close

    @property
    def fault(self) -> RankLost | None:
        """As `Decoder.fault`: that a rank is gone."""
        return None if self.group.lost is None else RankLost(self.group.lost)

    def close(self) -> None:
        """As `Decoder.close`."""
        self.on_close()

    def store_output(self, store: Store) -> Store:
        """As `Decoder.store_output`: split into parts."""

        def store_parts(weight: Tensor, bias: Tensor | None) -> Projection:
            biases = [None] * NUM_PARTS if bias is None else bias.chunk(NUM_PARTS)
            parts = [store(*each) for each in zip(weight.chunk(NUM_PARTS), biases, strict=True)]
            self._splits.append(SplitProjection(parts, self.group))
            return self._splits[-1]

        return store_parts

    def set_overlap(self, overlap: Overlap) -> None:
        """Choose how sums are hidden in the passes from now on, on all ranks the same."""
        self._overlap = overlap
        for each in self._splits:
            each.sums = overlap == "parts"

    def sum_output(self, output: Tensor, part: object) -> Tensor:
        """As `Decoder.sum_output`: the sum over all ranks."""
        if self._overlap == "parts" and not isinstance(part, Experts):
            return output
        output = output.contiguous()
        self.group.finish(self.group.start_sum(output))
        return output

    @torch.inference_mode()
    def run_halves(self, halves: Sequence[tuple[Tensor, LayerOps]]) -> Tensor:
        """Run batches in turns, as `run_layers` runs one, and return the hidden states of all.

        Where they have rows of one sequence, those of an earlier batch come first.
        """
        running = [self.iterate_layers(*each) for each in halves]
        pending = [self._start(next(each)[0]) for each in running]
        finished: list[Tensor | None] = [None] * len(running)
        while None in finished:
            for at, layers in enumerate(running):
                output, work = pending[at]
                self.group.finish(work)
                try:
                    pending[at] = self._start(layers.send(output)[0])
                except StopIteration as done:
                    finished[at] = done.value
        return torch.cat([each for each in finished if each is not None])

    def _start(self, output: Tensor) -> tuple[Tensor, Work]:
        output = output.contiguous()
        return output, self.group.start_sum(output)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`; on other ranks than the first those of this rank's tokens."""
        if self.group.rank == 0:
            self._send_rows(Command.COMPUTE_LOGITS, hidden)
        own = super().logits(hidden)
        width = -(-self.config.vocab_size // self.group.size)  # the last rank may have fewer tokens
        parts = self.group.gather(F.pad(own, (0, width - own.shape[1])).contiguous())
        return torch.cat(parts, dim=1)[:, : self.config.vocab_size] if parts else own

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> TopTokens:
        """As `Decoder.likeliest`; three numbers of each row and rank are exchanged, no logits."""
        if self.group.rank == 0:
            self._send_rows(Command.FIND_LIKELIEST, hidden)
        own = super().likeliest(hidden)
        numbers = np.stack([own.token_ids, own.largest, own.second]).astype(np.float64)
        found, *others = [
            TopTokens(ids.astype(np.intp), largest.astype(np.float32), second.astype(np.float32))
            for ids, largest, second in map(_to_numpy, self.group.gather(torch.from_numpy(numbers).to(hidden.device)))
        ] or [own]
        for rank, other in enumerate(others, 1):
            found = found.merge(other, Shard(rank, self.group.size).find_tokens(self.config.vocab_size).start)
        return found

    def receive_rows(self, count: int) -> Tensor:
        """On other ranks than the first: return the hidden states that the first one sends."""
        rows = torch.empty(count, self.config.hidden_size, dtype=self.weights.dtype, device=self.weights.device)
        self.group.broadcast(rows)
        return rows

    def _send_rows(self, command: Command, hidden: Tensor) -> None:
        self.group.send(command, [len(hidden)])
        self.group.broadcast(hidden.contiguous())


def _to_numpy(part: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = part.cpu().numpy()
    return found
