"""The loop that continues sequences: prefill, then draft, verify, accept, until the output ends."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from engine.errors import RequestError
from engine.model import LM_HEAD_ROWS, Decoder
from engine.sampling import Sampler
from engine.sequence import RunningSequence
from engine.stopping import StopFinder
from engine.types import GenerationRequest, GenerationResult, GenerationStep, GenerationUsage, Proposer
from kernels.accept import num_accepted

PREFILL_CHUNK = 512
"""Prompt tokens a forward pass; bounds the memory of activations and how long a cancellation waits."""


class Engine:
    """Runs one request at a time on one preallocated KV cache, whose exact prefix the next request reuses.

    `token_bytes[i]` is what token i stands for; it is needed for stop strings and output bytes. Thread-safe: callers
    wait for one another.
    """

    def __init__(self, model: Decoder, token_bytes: Sequence[bytes], max_seq_len: int) -> None:
        self.model = model
        self.max_seq_len = min(max_seq_len, model.config.max_positions)
        nameless = model.config.vocab_size - len(token_bytes)  # vocabularies are padded to round sizes
        self._token_bytes = [*token_bytes, *[b""] * nameless]
        self._caches = model.new_caches(1, self.max_seq_len)
        self._resident: list[int] = []
        self._lock = threading.Lock()

    def generate(
        self, request: GenerationRequest, proposer: Proposer | None = None
    ) -> Generator[GenerationStep, None, GenerationResult]:
        """Continue the prompt, yielding what each forward pass adds (nothing, while the prompt is read).

        The generator's value is the whole result. Closing it cancels the request. Raises RequestError where the
        request does not fit.
        """
        self._check(request)
        with self._lock:
            sequence = RunningSequence(
                request,
                Sampler(request),
                StopFinder(self._token_bytes, request.stop_ids, request.stop),
                GenerationUsage(prompt=len(request.prompt_ids)),
            )
            pending = yield from self._prefill(sequence)
            while not sequence.stops.stopped and sequence.num_left:
                taken = self._verify(sequence, pending, self._draft(sequence, len(pending), proposer))
                pending = taken[-1:]
                yield GenerationStep(tuple(taken), sequence.stops.release(finished=sequence.num_left == 0))
            return self._result(sequence)

    def run(self, request: GenerationRequest, proposer: Proposer | None = None) -> GenerationResult:
        """`generate` to its end."""
        steps = self.generate(request, proposer)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: GenerationResult = end.value
                return result

    def check_integrity(self) -> None:
        """What the cache holds is what is noted of it."""
        lengths = {cache.lengths[0] for cache in self._caches}
        assert lengths == {len(self._resident)}, f"layers hold {lengths} tokens, {len(self._resident)} are noted"

    def _check(self, request: GenerationRequest) -> None:
        needed = len(request.prompt_ids) + request.max_new_tokens
        if needed > self.max_seq_len:
            raise RequestError(
                f"the prompt's {len(request.prompt_ids)} tokens and up to {request.max_new_tokens} new ones exceed the "
                f"context of {self.max_seq_len}"
            )
        vocab_size = self.model.config.vocab_size
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocab_size:
            raise RequestError(f"the prompt holds a token id outside [0, {vocab_size})")

    def _prefill(self, sequence: RunningSequence) -> Generator[GenerationStep, None, list[int]]:
        """Reuse the cached prefix and run the prompt but for its last chunk, which rides with the first draft.

        Yields an empty step behind every chunk, so that a long prompt can be cancelled.
        """
        prompt = list(sequence.request.prompt_ids)
        start = _common_prefix_len(self._resident, prompt[:-1])  # the last token is run again: its logits are needed
        self._truncate(start)
        sequence.usage.cached = start
        while len(prompt) - start > PREFILL_CHUNK:
            self._forward(prompt[start : start + PREFILL_CHUNK], sequence.usage)
            start += PREFILL_CHUNK
            yield GenerationStep((), b"")
        return prompt[start:]

    def _draft(self, sequence: RunningSequence, num_pending: int, proposer: Proposer | None) -> list[int]:
        """Draft tokens; one place is left for the token that every pass gives for free."""
        room = min(sequence.window.size, sequence.num_left - 1, self.max_seq_len - len(self._resident) - num_pending)
        if proposer is None or room <= 0:
            return []
        return proposer.propose(sequence.output_ids, room)[:room]

    def _verify(self, sequence: RunningSequence, pending: list[int], draft: list[int]) -> list[int]:
        """One pass over the pending tokens and the draft; returns the tokens that it confirms, at least one."""
        hidden = self._forward(pending + draft, sequence.usage)[len(pending) - 1 :]
        targets, accepted = self._choose(sequence, hidden, draft)
        sequence.usage.drafted += len(draft)
        sequence.window.observe(len(draft), accepted)
        self._truncate(len(self._resident) - len(draft) + accepted)
        taken = sequence.append(targets[: accepted + 1])
        sequence.usage.accepted += min(accepted, len(taken))
        sequence.usage.completion = len(sequence.output_ids)
        return taken

    def _choose(self, sequence: RunningSequence, hidden: Tensor, draft: list[int]) -> tuple[list[int], int]:
        """The model's choices row by row, as far as they follow the draft, and how many of it they confirm.

        Logits are made for a block of rows at a time, and no further than the first departure.
        """
        chosen: list[int] = []
        for start in range(0, len(hidden), LM_HEAD_ROWS):
            rows = hidden[start : start + LM_HEAD_ROWS]
            logits = self.model.logits(rows)
            chosen += sequence.sampler.choose(logits, sequence.output_ids + draft[:start], draft[start:]).token_ids
            expected = draft[start : start + len(rows)]
            if chosen[start : start + len(expected)] != expected:
                break
        accepted = num_accepted(torch.tensor(chosen), torch.tensor(draft[: len(chosen) - 1], dtype=torch.int64))
        return chosen, accepted

    def _forward(self, token_ids: list[int], usage: GenerationUsage) -> Tensor:
        device = self.model.weights.device
        try:
            hidden = self.model.forward(torch.tensor(token_ids, device=device), self._caches)
        except BaseException:  # Ctrl-C between two layers: the cache goes back to what is noted
            self._truncate(len(self._resident))
            raise
        self._resident += token_ids
        usage.forwards += 1
        return hidden

    def _truncate(self, length: int) -> None:
        del self._resident[length:]
        for cache in self._caches:
            cache.truncate(0, length)

    def _result(self, sequence: RunningSequence) -> GenerationResult:
        stops = sequence.stops
        return GenerationResult(
            token_ids=tuple(sequence.output_ids),
            text=bytes(stops.text),
            finish_reason="stop" if stops.stopped else "length",
            usage=sequence.usage,
        )


def _common_prefix_len(first: Sequence[int], second: Sequence[int]) -> int:
    for length, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return length
    return min(len(first), len(second))
