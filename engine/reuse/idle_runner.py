"""Runs idle work, one request at a time, while no other request waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.errors import EngineError
from engine.reuse.idle_queue import (
    LIKELIEST,
    AuditClass,
    AuditConfig,
    AuditEstimate,
    AuditPolicy,
    IdleCounts,
    IdleQueue,
    IdleTask,
    compare,
)
from engine.types import EXACT, GenerationRequest, GenerationResult, Output, Reuse


@dataclass(frozen=True, slots=True)
class IdleStats:
    """`num_waiting` tasks are left; `counts` are those since the start; `audits` by class of requests."""

    num_waiting: int
    counts: IdleCounts
    audits: Mapping[AuditClass, AuditEstimate]


class IdleRunner:
    """One a core, which asks it to `begin` where nothing waits or runs, and to `make_way` for every request.

    An exact run of the prompt puts its KV into the prefix cache, where the next turn finds it, and in place of what the
    approximate run left in the span store. An audit runs the output once more on KV that is taken over, before that.
    Who comes meanwhile waits for the pass that is running; what earlier ones have computed stays cached.
    """

    def __init__(
        self,
        start: Callable[[GenerationRequest, bytes], int],
        cancel: Callable[[int], None],
        fingerprint: str,
        *,
        rebuild: bool,
        audit: AuditConfig,
    ) -> None:
        """`start` has the core run a request whose outputs come to `take`, unless its KV has another root by now.

        `fingerprint` is the model's.
        """
        self._start = start
        self._cancel = cancel
        self._fingerprint = fingerprint
        self._rebuild = rebuild
        self._policy = AuditPolicy(audit)
        self._counts = IdleCounts()
        self._queue = IdleQueue(self._counts)
        self._task: IdleTask | None = None
        self._request_id: int | None = None

    @property
    def has_work(self) -> bool:
        """Whether anything is left to do."""
        return self._task is not None or len(self._queue) > 0

    def apply_budget(self, reuse: Reuse, root: bytes) -> Reuse:
        """What a request allows, with the budget of its class where it names none."""
        raised_by = self._policy.get_raise(self._class_of(reuse, root))
        return replace(reuse, budget=raised_by) if raised_by and reuse.budget is None else reuse

    def on_finished(self, request: GenerationRequest, root: bytes, result: GenerationResult) -> None:
        """A request of somebody else is over."""
        if not result.usage.reused_approximate:
            return
        audited = (
            request.reuse.budget is None and self._policy.is_drawn()
        )  # who names a budget is answered for by himself
        if self._rebuild or audited:
            ids = result.token_ids[: self._policy.config.most_tokens] if audited else ()
            self._queue.push(IdleTask(request, root, ids))

    def start_next(self) -> None:
        """Nobody waits: run a request of the newest task, if there is one."""
        while self._task is None and (task := self._queue.pop()) is not None:
            try:
                self._request_id = self._start(_build_request(task), task.root)
            except EngineError:
                self._counts.dropped += 1
            else:
                self._task = task

    def preempt(self) -> None:
        """Somebody waits: take the running request back, and go on with it later."""
        if self._task is not None and self._request_id is not None:
            self._counts.interrupted += 1
            self._cancel(self._request_id)
            self._queue.push(self._task)
            self._task = None

    def take_output(self, output: Output) -> bool:
        """Whether an output belongs to a request of its own."""
        if self._task is None or output.id != self._request_id:
            return False
        if output.error is not None:
            self._counts.dropped += 1
            self._task = None
        elif output.result is not None:
            task, self._task = self._task, None
            self._on_task_finished(task, output.result)
        return True

    def forget(self) -> None:
        """Leave everything that is left to do."""
        if self._task is not None and self._request_id is not None:
            self._cancel(self._request_id)
        self._task = None
        self._queue.clear()

    def stats(self) -> IdleStats:
        """One look at it."""
        return IdleStats(len(self._queue) + (self._task is not None), replace(self._counts), self._policy.estimates())

    def _on_task_finished(self, task: IdleTask, result: GenerationResult) -> None:
        """A task's request is over."""
        if task.is_to_be_compared:
            if result.usage.reused_approximate:
                self._queue.push(replace(task, approximate=result.logprobs))
            else:  # an exact run has come between
                self._queue.push(replace(task, audited_ids=()))
            return
        self._counts.rebuilt += 1
        self._counts.rebuilt_tokens += result.usage.recomputed
        if task.approximate:
            self._counts.audited += 1
            self._policy.book(self._class_of(task.request.reuse, task.root), compare(result.logprobs, task.approximate))

    def _class_of(self, reuse: Reuse, root: bytes) -> AuditClass:
        return AuditClass(self._fingerprint, reuse.mode, reuse.edit_class, root.hex())


def _build_request(task: IdleTask) -> GenerationRequest:
    """The prompt once more: on KV that is taken over where that is to be compared, else exactly."""
    ids = task.audited_ids
    return replace(
        task.request,
        max_new_tokens=max(1, len(ids)),
        forced_ids=ids,
        logprobs=LIKELIEST if ids else None,
        stop_ids=frozenset(),
        stop=(),
        deadline_s=None,
        reuse=task.request.reuse if task.is_to_be_compared else EXACT,
    )
