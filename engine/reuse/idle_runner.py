"""Runs idle work, one request at a time, while no other request is pending."""

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
    """`num_waiting`: tasks that are left. `counts`: since the start. `audits`: the estimates by class of requests."""

    num_waiting: int
    counts: IdleCounts
    audits: Mapping[AuditClass, AuditEstimate]


class IdleRunner:
    """Runs the idle tasks of one core, which calls `start_next` when it has nothing to do, and `preempt` for every
    request.

    An exact run of the prompt puts its KV into the prefix cache, where the next turn finds it, and replaces what the
    approximate run left in the span store. For an audit, the output is first run once more on reused KV. A request that
    arrives meanwhile waits for the running pass; KV that is already computed stays cached.
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
        """`start` has the core run a request whose outputs are passed to `take_output`, unless its KV has another root
        by now.

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
        """Whether a task is left."""
        return self._task is not None or len(self._queue) > 0

    def apply_budget(self, reuse: Reuse, root: bytes) -> Reuse:
        """Return the request's reuse, with the budget of its class if it names none."""
        raised_by = self._policy.get_extra_budget(self._class_of(reuse, root))
        return replace(reuse, budget=raised_by) if raised_by and reuse.budget is None else reuse

    def on_finished(self, request: GenerationRequest, root: bytes, result: GenerationResult) -> None:
        """Queue a finished request of a caller, if it reused KV and is to be rebuilt or audited."""
        if not result.usage.reused_approximate:
            return
        audited = (
            request.reuse.budget is None and self._policy.is_drawn()
        )  # who names a budget is answered for by himself
        if self._rebuild or audited:
            ids = result.token_ids[: self._policy.config.most_tokens] if audited else ()
            self._queue.push(IdleTask(request, root, ids))

    def start_next(self) -> None:
        """Start the request of the newest task, if there is one."""
        while self._task is None and (task := self._queue.pop()) is not None:
            try:
                self._request_id = self._start(_build_request(task), task.root)
            except EngineError:
                self._counts.dropped += 1
            else:
                self._task = task

    def preempt(self) -> None:
        """Cancel the running request for a caller's request; its task is continued later."""
        if self._task is not None and self._request_id is not None:
            self._counts.interrupted += 1
            self._cancel(self._request_id)
            self._queue.push(self._task)
            self._task = None

    def take_output(self, output: Output) -> bool:
        """Return whether an output belongs to idle work, and process it if so."""
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
        """Drop all idle work."""
        if self._task is not None and self._request_id is not None:
            self._cancel(self._request_id)
        self._task = None
        self._queue.clear()

    def stats(self) -> IdleStats:
        """Return the counts of idle work."""
        return IdleStats(len(self._queue) + (self._task is not None), replace(self._counts), self._policy.estimates())

    def _on_task_finished(self, task: IdleTask, result: GenerationResult) -> None:
        """Process the result of a task's request."""
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
        return AuditClass(self._fingerprint, reuse.mode, root.hex())


def _build_request(task: IdleTask) -> GenerationRequest:
    """Return the request that runs the prompt again: on reused KV if that is to be compared, else exactly."""
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
