"""Makes a model of random weights write a given text, so that drafts of it are accepted as a real model's would be.

All of the model's work is done: the layers, the LM head over every row, the choice among the whole vocabulary. Between
the last two one number a row is overwritten on the device: the logit of the token that the text has there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.types import Draft, Proposer
from kernels.accept import Likeliest, likeliest_of

CERTAIN = 1e4
"""A logit above all others that every float dtype holds."""


class ScriptedDecoder(Decoder):
    """The same weights and memory as the decoder that it is made of.

    For one sequence at a time, whose drafts do not fork: row i of a pass then stands before output token
    `num_written + i`.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)
        self._ids: Tensor | None = None
        self._next = 0

    def follow(self, token_ids: Sequence[int] | None) -> None:
        """What to write from now on; None: what the weights say."""
        self._ids = None if token_ids is None else torch.tensor(token_ids, device=self.weights.device)
        self._next = 0

    def begin_pass(self, num_written: int) -> None:
        """So many tokens of the text are in the output when the next pass begins."""
        self._next = num_written

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As the decoder's, but for the logit of the text's token behind each row, as far as it goes."""
        logits = super().logits(hidden)
        if self._ids is not None:
            ids = self._ids[self._next : self._next + len(logits)]
            self._next += len(logits)
            logits[: len(ids)].scatter_(1, ids[:, None], CERTAIN)
        return logits

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> Likeliest:
        """By all logits at once."""
        return likeliest_of(self.logits(hidden))


class Unforked:
    """A proposer's drafts without their branches, and without a look at what the model would have written behind them.

    A script knows neither, so that what they would save is not counted.
    """

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """The draft's trunk."""
        draft = self._proposer.propose(output_ids, max_tokens)
        return Draft(draft.token_ids, draft.runs)
