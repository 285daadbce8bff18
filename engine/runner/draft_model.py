"""A small model that drafts what a larger one writes next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.engine_config import EngineConfig, SchedulerConfig
from engine.kv_cache import KVPages
from engine.request import RequestState
from engine.runner.cuda_runner import build_runner
from engine.runner.step_rows import PagedRows
from engine.runner.torch_runner import load_or_measure_times
from engine.sampling import read_row
from engine.scheduler import ScheduledSequence
from engine.speculation.draft_state import DRAFT_MODEL, MOST_BY_MODEL
from engine.types import Draft, DraftRun, count_common_prefix

WINDOW = 64
"""Tokens before the first draft that the draft model reads. The more it reads, the more of its tokens are right, and
the later they come: docs/drafts.md has the figures."""

CONTEXT = 1024
"""Tokens of one sequence that the draft model keeps. One that grows beyond begins anew with the last WINDOW of them."""

MOST_SEQUENCES = 8
"""Sequences whose KV the draft model has room for. With more of them in a pass, drafts of a model gain nothing on a
CPU."""


@dataclass(slots=True, eq=False)
class DraftTask:
    """A draft in the making. num_sequences: how many share the next pass. most: its greatest length."""

    sequence: ScheduledSequence
    state: RequestState
    most: int
    num_sequences: int
    token_ids: list[int] = field(default_factory=list)
    runs: list[DraftRun] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def draft(self) -> Draft:
        """What was drafted so far."""
        return Draft(self.token_ids, tuple(self.runs))

    def add(self, token_id: int, share: float) -> None:
        """Append a token to which the draft model gives this probability."""
        self.token_ids.append(token_id)
        self.runs.append(DraftRun(DRAFT_MODEL, 1, 1.0 - share))


@dataclass(slots=True)
class _Context:
    """What the draft model has read of a sequence: tokens from `start` on; all of `token_ids` have KV."""

    start: int
    token_ids: list[int] = field(default_factory=list)


class DraftModel:
    """A decoder with the target's tokenizer that drafts for it, greedily or with the request's own random numbers.

    It reads a sequence from WINDOW tokens before its first draft on, into pages of its own. It has KV of tokens only
    while it drafts for their sequence, so nothing has to be undone if its tokens are rejected. Source: Leviathan et al.
    2023, arXiv 2211.17192.
    """

    def __init__(
        self,
        model: Decoder,
        config: EngineConfig,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`config` and `vocab_size` are the target's: of the draft model's vocabulary only ids below it are drafted.

        Raises EngineError if there is no memory for the pages.
        """
        self.model = model
        self._vocab_size = vocab_size
        own = EngineConfig(
            min(CONTEXT, model.config.max_positions),
            page_size=config.page_size,
            scheduler=SchedulerConfig(max_num_seqs=MOST_SEQUENCES),
            kv_sequences=MOST_SEQUENCES,
            pass_times_dir=None if config.pass_times_dir is None else config.pass_times_dir / "drafts",
            kernels_dir=config.kernels_dir,
        )
        self._max_len = own.max_seq_len
        self._pool, _, self._runner = build_runner(model, own)
        self.times = load_or_measure_times(self._runner, model, self._pool, own.pass_times_dir, clock)
        self.forget()

    @property
    def num_open(self) -> int:
        """Sequences that it has read."""
        return len(self._contexts)

    def forget(self) -> None:
        """Forget all sequences."""
        self._pages = KVPages(self._pool.num_pages, self._pool.page_size, window=None)
        self._contexts: dict[int, _Context] = {}  # the one that was used last is the last one

    def close(self, sequence_id: int) -> None:
        """Forget a sequence, if it is known."""
        if self._contexts.pop(sequence_id, None) is not None:
            self._pages.close(sequence_id)

    def count_behind(self, sequence: ScheduledSequence) -> int:
        """Return how many tokens have to be run for the first draft token after the sequence, at least one."""
        context = self._contexts.get(sequence.id)
        window = min(WINDOW, len(sequence.token_ids))
        return window if context is None else min(window, self._count_new(context, sequence))

    @torch.inference_mode()
    def draft(self, tasks: Sequence[DraftTask]) -> None:
        """Draft for all tasks in common passes, each as far as its request wants it. A task for which there is no room
        gets nothing.
        """
        kept = {each.sequence.id for each in tasks}
        ready = [each for each in tasks if self._make_room(each, kept)]
        rows = [self._read_known(each) for each in ready]
        while ready:
            hidden = self._runner.compute_hidden(rows)
            num_rows = [each.num_rows for each in rows]
            seconds = self.times(sum(num_rows))
            last = torch.tensor(num_rows).cumsum(0) - 1
            self._choose(ready, hidden[last.to(hidden.device)])
            for each in ready:
                each.seconds += seconds
            ready = [
                each
                for each in ready
                if each.state.draft_state.wants_longer(each.draft, each.seconds, each.most, each.num_sequences)
            ]
            rows = [self._read_drafted(each) for each in ready]

    def _choose(self, tasks: Sequence[DraftTask], hidden: Tensor) -> None:
        """Append the next token to each task's draft."""
        logits = self.model.logits(hidden)[:, : self._vocab_size].float()
        top = logits.max(dim=1)
        shares = (top.values - logits.logsumexp(dim=1)).exp().tolist()
        for row, (task, token_id, share) in enumerate(zip(tasks, top.indices.tolist(), shares, strict=True)):
            sampler, known = task.state.sampler, [*task.state.output_ids, *task.token_ids]
            if math.isnan(share):  # what is left of the vocabulary cannot be drawn from
                task.most = len(task.token_ids)
                continue
            if not sampler.is_plain_greedy:
                token_id = sampler.guess(read_row(logits, row), known, self._vocab_size)
            task.add(token_id, share)

    def _count_new(self, context: _Context, sequence: ScheduledSequence) -> int:
        """Return how many of the sequence's last tokens the context does not hold; at least one, for its hidden
        state.
        """
        known = sequence.token_ids[context.start :]
        return max(1, len(known) - count_common_prefix(context.token_ids, known))

    def _make_room(self, task: DraftTask, kept: set[int]) -> bool:
        """Open the sequence, or keep it open where that costs fewer rows, and reserve pages for the longest draft.

        The sequences that are not `kept` may be closed for it, the one that was used longest ago first.
        """
        sequence = task.sequence
        num_known, window = len(sequence.token_ids), min(WINDOW, len(sequence.token_ids))
        longest = min(task.most, MOST_BY_MODEL)
        context = self._contexts.pop(sequence.id, None)
        if context is not None and (
            self._count_new(context, sequence) > window or num_known - context.start + longest > self._max_len
        ):
            self._pages.close(sequence.id)
            context = None
        if context is None:
            context = _Context(num_known - window)
            self._pages.open(sequence.id, sequence.token_ids[context.start :], b"", is_counted=False)
        self._contexts[sequence.id] = context
        while not self._pages.grow(sequence.id, num_known - context.start + longest):
            oldest = next((each for each in self._contexts if each not in kept), sequence.id)
            self.close(oldest)
            if oldest == sequence.id:
                return False
        return True

    def _read_known(self, task: DraftTask) -> PagedRows:
        """Return the rows of the sequence's tokens that have no KV yet."""
        sequence = task.sequence
        context = self._contexts[sequence.id]
        known = sequence.token_ids[context.start :]
        first = len(known) - self._count_new(context, sequence)
        context.token_ids = known
        return PagedRows(known[first:], range(first, len(known)), self._pages.page_table(sequence.id))

    def _read_drafted(self, task: DraftTask) -> PagedRows:
        """Return the row of the token that was drafted last."""
        context = self._contexts[task.sequence.id]
        position = len(context.token_ids)
        context.token_ids.append(task.token_ids[-1])
        return PagedRows([task.token_ids[-1]], range(position, position + 1), self._pages.page_table(task.sequence.id))
