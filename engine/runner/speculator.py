"""Proposes the drafts of a step, and chooses how much of them is run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from engine.device import check_device
from engine.request import RequestState
from engine.runner.draft_model import DraftModel, DraftTask
from engine.scheduler import ScheduledSequence, Scheduler, Status
from engine.scheduler.scheduler import split_evenly
from engine.speculation.draft_state import DraftState, choose_lengths
from engine.speculation.step_times import StepTimes
from engine.types import Proposer

log = logging.getLogger(__name__)


class Speculator:
    """The drafts of all running requests: those of their own drafters, and those of the draft model where they are
    expected to gain more.
    """

    def __init__(
        self,
        live: Mapping[int, tuple[ScheduledSequence, RequestState]],
        times: StepTimes,
        get_scheduler: Callable[[], Scheduler],
        draft_model: DraftModel | None,
    ) -> None:
        """`live` are all requests that are not finished, by id; it is read whenever a step is scheduled."""
        self._live = live
        self._times = times
        self._get_scheduler = get_scheduler
        self._draft_model = draft_model
        self.fault: Exception | None = None  # what ended the use of the draft model

    def build_state(self, proposer: Proposer | None, vocab_size: int, clock: Callable[[], float]) -> DraftState:
        """Return the state of a request's drafts; proposed ids have to be below `vocab_size`."""
        draft_times = None if self._draft_model is None else self._draft_model.times
        return DraftState(proposer, self._times, clock, vocab_size=vocab_size, draft_times=draft_times)

    @property
    def num_open(self) -> int:
        """Requests that the draft model has read."""
        return 0 if self._draft_model is None else self._draft_model.num_open

    def forget(self) -> None:
        """Forget all requests."""
        if self._draft_model is not None:
            self._draft_model.forget()

    def propose(self) -> list[tuple[int, Exception]]:
        """Give every sequence without a draft one, if there is any.

        Returns the requests whose drafter raised, and what it raised.
        """
        faults: list[tuple[int, Exception]] = []
        config = self._get_scheduler().config
        most = max(config.max_drafted, config.max_batched_tokens)
        for sequence, state in list(self._live.values()):
            if not sequence.draft:
                try:
                    sequence.draft = state.propose_draft(most)
                except Exception as error:  # noqa: BLE001 -- the caller's code; the other requests go on
                    faults.append((sequence.id, error))
        if self._draft_model is not None:
            self._draft_by_model(self._draft_model, {sequence_id for sequence_id, _ in faults})
        return faults

    def _draft_by_model(self, model: DraftModel, skipped: set[int]) -> None:
        """Replace drafts by those of the draft model where that is expected to gain."""
        tasks: list[DraftTask] = []
        num_sequences, num_left = self._num_running, self._get_scheduler().config.prefill_beside_decodes
        for sequence, state in self._live.values():
            if sequence.id in skipped or sequence.status is not Status.RUNNING or sequence.num_pending != 1:
                continue
            room, num_behind = state.count_model_room(), model.count_behind(sequence)
            if num_behind <= num_left and state.draft_state.wants_model(room, num_sequences, num_behind):
                tasks.append(DraftTask(sequence, state, room, num_sequences))
                num_left -= num_behind
        if not tasks:
            return
        try:
            model.draft(tasks)
        except Exception as error:  # noqa: BLE001 -- most likely out of memory; requests can do without
            check_device(model.model.weights.device)
            log.warning("the draft model failed and is not used any more: %s: %s", type(error).__name__, error)
            self._draft_model, self.fault = None, error
            return
        for task in tasks:
            if task.token_ids:
                task.sequence.draft = list(task.state.draft_state.take_model_draft(task.draft, task.seconds))

    def choose_lengths(self, sequences: Sequence[ScheduledSequence], num_scheduled: int, num_left: int) -> list[int]:
        """Return how many tokens of each sequence's draft to run. Forced tokens are no guess, and go first."""
        if not sequences:
            return []
        forced = [self._get_state(each).is_forced for each in sequences]
        lengths = split_evenly(
            [each.num_draftable * is_so for each, is_so in zip(sequences, forced, strict=True)], num_left
        )
        num_forced, num_running = sum(lengths), self._num_running
        guessed = [place for place, is_so in enumerate(forced) if not is_so]
        guesses = [
            self._get_state(sequences[place]).draft_state.build_candidate(sequences[place].num_draftable, num_running)
            for place in guessed
        ]
        chosen = choose_lengths(guesses, num_scheduled + num_forced, num_running, num_left - num_forced, self._times)
        for place, length in zip(guessed, chosen, strict=True):
            lengths[place] = length
        return lengths

    def close(self, sequence_id: int) -> None:
        """Forget a request."""
        if self._draft_model is not None:
            self._draft_model.close(sequence_id)

    @property
    def _num_running(self) -> int:
        return self._get_scheduler().stats().num_running

    def _get_state(self, sequence: ScheduledSequence) -> RequestState:
        return self._live[sequence.id][1]
