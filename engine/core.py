"""The engine's loop: schedule a step, run it, choose tokens, update the requests. Single-threaded; `Engine` gives it a
thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.batch_invariant import InvariantDecoder
from engine.decoder import Decoder
from engine.device import check_device, use_device
from engine.engine_config import EngineConfig
from engine.errors import DeadlineExceeded, DeviceLost, DoesNotFit, EngineError, EngineFault, RequestError
from engine.kv_cache import KVPages, root_key
from engine.layers import Adapter, AdapterSet
from engine.prefix_tier import build_shared_prefixes
from engine.prefix_tier.fetch_queue import FetchQueue
from engine.request import AddedTokens, RequestState
from engine.reuse import ReusePlan
from engine.reuse.idle_runner import IdleRunner, IdleStats
from engine.runner.cuda_runner import build_runner
from engine.runner.draft_model import DraftModel
from engine.runner.speculator import Speculator
from engine.runner.step_rows import StepRows, Verification
from engine.runner.torch_runner import Wait, load_or_measure_times
from engine.scheduler import ScheduledSequence, Scheduler, Status
from engine.tensor_parallel.decoder import ShardDecoder
from engine.tensor_parallel.runner import build_shard_runner
from engine.types import GenerationRequest, GenerationStep, Output, Proposer, SourceUsage

_RowsResult = tuple[StepRows, Verification | EngineFault | None]
"""A sequence's rows of a pass, and the choice made after them; None inside a prompt."""


@dataclass(slots=True)
class _RunningPass:
    """A pass that was launched. plain_s: its expected seconds without drafts."""

    rows: list[StepRows]
    wait: Wait
    started: float
    plain_s: float


@dataclass(slots=True)
class _UnfinishedOutput:
    """What a pass added to an output that goes on. Its text is not needed for the next pass."""

    id: int
    state: RequestState
    added: AddedTokens

    def build(self) -> Output:
        return Output(self.id, step=self.state.build_step(self.added))


MOST_DECODED = 64
"""Tokens of a pass up to which it says nothing of how quick prompts are computed."""


class EngineCore:
    """Continues many sequences together on one paged KV pool; sequences share the KV of equal prefixes.

    `token_bytes[i]` are the bytes of token i, needed for stop strings and the output's bytes. Not thread-safe.
    """

    def __init__(
        self,
        model: Decoder,
        token_bytes: Sequence[bytes],
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        draft_model: Decoder | None = None,
    ) -> None:
        """As `Engine`; raises EngineError if there is no memory for the pool, ValueError if it would hold no page."""
        self.model = model = InvariantDecoder(model) if config.batch_invariant else model
        self.config = config
        self.max_seq_len = min(config.max_seq_len, model.config.max_positions)
        nameless = model.config.vocab_size - len(token_bytes)  # vocabularies are padded to round sizes
        self._token_bytes = [*token_bytes, *[b""] * nameless]
        self._clock = clock
        weights = model.weights
        build = build_shard_runner if isinstance(model, ShardDecoder) else build_runner
        self._pool, self.reuse, self._runner = build(model, config)
        self._idle = IdleRunner(
            self._add_idle,
            self.cancel,
            model.fingerprint.hex(),
            rebuild=config.idle_rebuild,
            audit=config.audit,
        )
        self._adapters = AdapterSet(model.config, weights.dtype, weights.device)
        with use_device(weights.device):
            self.times = load_or_measure_times(self._runner, model, self._pool, config.pass_times_dir, clock)
            if self._runner.graphs is not None and config.pass_times_dir is not None:
                self._runner.graphs.capture_first(config.scheduler.max_num_seqs)
            drafting = None if draft_model is None else DraftModel(draft_model, config, model.config.vocab_size, clock)
        self._live: dict[int, tuple[ScheduledSequence, RequestState]] = {}
        self._speculator = Speculator(self._live, self.times, lambda: self.scheduler, drafting)
        self.draft_times = None if drafting is None else drafting.times
        self.num_passes = 0
        self.drafted: dict[str, SourceUsage] = {}
        self._num_added = 0
        self.shared = build_shared_prefixes(config, model, self._pool)
        self._fetches = None if self.shared is None else FetchQueue(self.shared)
        self._seconds_per_token = self.times(config.scheduler.max_batched_tokens) / config.scheduler.max_batched_tokens
        self._start_empty()

    def reset(self) -> None:
        """Forget every request and all cached KV; the memory stays allocated."""
        self._start_empty()
        if self.reuse is not None:
            self.reuse.forget()
        self._idle.forget()

    def _start_empty(self) -> None:
        if self._fetches is not None:
            self._fetches.stop_all()
        self.pages = KVPages(
            self._pool.num_pages,
            self.config.page_size,
            window=self.model.config.window,
            clock=self._clock,
        )
        self._live.clear()
        self._speculator.forget()
        self._pass: _RunningPass | None = None
        self.scheduler = Scheduler(
            self.config.scheduler, self.pages, self._clock, self._speculator.choose_lengths, self._reuse_kv
        )

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter, a PEFT folder, under a name that requests may use. Raises WeightsError.

        It stays unmerged beside the model, and replaces an earlier one of this name for new requests.
        """
        self._adapters.load(name, folder)
        self._forget_adapter_graphs()

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that run with it keep it. Raises RequestError if there is none of this name."""
        self._adapters.unload(name)
        self._forget_adapter_graphs()

    def _forget_adapter_graphs(self) -> None:
        if self._runner.graphs is not None:
            self._runner.graphs.keep_adapters(self._adapters.adapters)

    def add(self, request: GenerationRequest, proposer: Proposer | None = None) -> int:
        """Add a request and return its id; raises RequestError, DoesNotFit or QueueFull."""
        self._check_request(request)
        self._idle.preempt()
        return self._add(request, proposer, in_idle_time=False)

    def _add(self, request: GenerationRequest, proposer: Proposer | None, *, in_idle_time: bool) -> int:
        (adapter, root), arrival = self._find_root(request), self._clock()
        drafting = self._speculator.build_state(proposer, self.model.config.vocab_size, self._clock)
        state = RequestState(request, self._token_bytes, drafting, adapter)
        sequence = ScheduledSequence(
            id=self._num_added,
            token_ids=list(request.prompt_ids),
            max_len=len(request.prompt_ids) + request.max_new_tokens,
            root=root,
            num_bare=request.adapter_start,
            mark=adapter.mark if adapter and request.adapter_start else 0,
            priority=request.priority,
            arrival=arrival,
            deadline=None if request.deadline_s is None else arrival + request.deadline_s,
            retain_s=request.retain_s,
            reuse=self._idle.apply_budget(request.reuse, root),
            in_idle_time=in_idle_time,
        )
        fetches = None if in_idle_time else self._fetches
        if fetches is None or not fetches.start(sequence, state, self.pages, 1 / self._seconds_per_token):
            try:
                self.scheduler.add(sequence)
            except EngineError:
                if fetches is not None:
                    fetches.stop(sequence.id)
                raise
            self._live[sequence.id] = (sequence, state)
        self._num_added += 1
        return sequence.id

    def _admit_fetched(self) -> list[Output]:
        """Give the scheduler the requests whose prefix was fetched, or will not be; wait a moment if that is all."""
        if not self._fetches:
            return []
        if not self.scheduler.has_pending_work():
            self._fetches.wait()
        outputs = []
        for sequence, state in self._fetches.take_fetched(self.pages, self._clock()):
            try:
                self.scheduler.add(sequence)
                self._live[sequence.id] = (sequence, state)
            except EngineError as error:
                outputs.append(Output(sequence.id, error=error))
        return outputs

    def _add_idle(self, request: GenerationRequest, root: bytes) -> int:
        """Add a request of idle work; raises RequestError if its adapter's name now belongs to other weights."""
        if self._find_root(request)[1] != root:
            raise RequestError(f"the adapter {request.adapter!r} was loaded anew")
        return self._add(request, None, in_idle_time=True)

    def _find_root(self, request: GenerationRequest) -> tuple[Adapter | None, bytes]:
        """Return the adapter, and the key under which KV is shared; raises RequestError if it is not loaded."""
        adapter = None if request.adapter is None else self._adapters.get(request.adapter)
        own = adapter.fingerprint.hex() if adapter and not request.adapter_start else None
        return adapter, root_key(self.model.fingerprint, request.salt, own)

    def close(self) -> None:
        """Write the stored KV to disk, if there is a disk tier, and leave the shared tier."""
        if self._fetches is not None:
            self._fetches.close()
        if self.reuse is not None:
            self.reuse.store.close()
        self.model.close()

    def idle_stats(self) -> IdleStats:
        """Return the counts of idle work."""
        return self._idle.stats()

    def forget_cached(self) -> None:
        """Drop all KV that is only kept for later requests, and the idle work that waits."""
        self._idle.forget()
        self.pages.forget()

    def cancel(self, request_id: int) -> None:
        """Remove a request in any state and free its pages. A request that has ended is ignored."""
        if request_id in self._live:
            self._remove(request_id)
        elif self._fetches is not None:
            self._fetches.stop(request_id)

    def has_pending_work(self) -> bool:
        """Return whether a step would do anything."""
        graphs = self._runner.graphs
        if self._pass or self._fetches or self.scheduler.has_pending_work():
            return True
        return self._idle.has_work or (graphs is not None and graphs.has_work)

    def step(self) -> list[Output]:
        """Run one pass over the scheduled tokens and return what it gave each request.

        On a card, the pass is launched, and what the pass before gave is returned while it runs. If no request is
        pending, the pass is one of idle work.
        """
        with use_device(self._pool.device):
            return self._step()

    def _step(self) -> list[Output]:
        finished, unfinished = self._finish_pass()
        later = self._admit_fetched()
        if self._fetches and not self.scheduler.has_pending_work():
            return [each for each in finished + later if not self._idle.take_output(each)]
        if not self.scheduler.has_pending_work():
            self._idle.start_next()
        if not self.scheduler.has_pending_work() and self._runner.graphs is not None:
            self._runner.graphs.capture_next()
        later += [
            self._fail(each, DeadlineExceeded("the request's time is over")) for each in self.scheduler.find_expired()
        ]
        later += self._propose_drafts()
        if self._fetches is not None:
            self._fetches.meet(self.pages, self.scheduler)
        schedule = self.scheduler.schedule()
        self._pool.copy(self.pages.take_copies())
        if schedule:
            self._launch_pass(schedule)
        outputs = [*finished, *(each.build() for each in unfinished), *later]
        if not self._runner.launches_ahead:
            finished, unfinished = self._finish_pass()
            outputs += [*finished, *(each.build() for each in unfinished)]
        if self.config.check_integrity:
            self.check_integrity()
        return [each for each in outputs if not self._idle.take_output(each)]

    def check_integrity(self) -> None:
        """Assert that scheduler and pages agree, and that no live request is lost."""
        self.pages.check_integrity()
        self.scheduler.check_integrity()
        if self.reuse is not None:
            self.reuse.store.check_integrity()
        stats = self.scheduler.stats()
        assert len(self._live) == stats.num_waiting + stats.num_running, "a request is lost"

    def _check_request(self, request: GenerationRequest) -> None:
        prompt, vocab_size = request.prompt_ids, self.model.config.vocab_size
        if len(prompt) + request.max_new_tokens > self.max_seq_len:
            raise DoesNotFit(
                f"the prompt's {len(prompt)} tokens and up to {request.max_new_tokens} new ones exceed the "
                f"context of {self.max_seq_len}"
            )
        given = {"the prompt": prompt, "forced_ids": request.forced_ids, "logit_bias": request.logit_bias}
        for name, ids in given.items():
            if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
                raise RequestError(f"{name} holds a token id outside [0, {vocab_size})")

    def _propose_drafts(self) -> list[Output]:
        """Have drafts proposed; a drafter that raises fails its own request."""
        return [self._fail(request_id, _make_fault(error)) for request_id, error in self._speculator.propose()]

    def _launch_pass(self, schedule: dict[int, int]) -> None:
        """Launch a pass over the scheduled tokens."""
        plain_s, started = self.times(len(schedule)), self._clock()
        rows = [StepRows.from_schedule(*self._live[id_], num_tokens) for id_, num_tokens in schedule.items()]
        self._pass = _RunningPass(rows, self._launch_rows(rows), started, plain_s)

    def _finish_pass(self) -> tuple[list[Output], list[_UnfinishedOutput]]:
        """Wait for the pass that runs, if one does, and update its requests; those cancelled meanwhile get nothing."""
        running, self._pass = self._pass, None
        outputs: list[Output] = []
        unfinished: list[_UnfinishedOutput] = []
        if running is None:
            return outputs, unfinished
        num_plain = sum(each.num_pending for each in running.rows)
        results = self._wait_for_rows(running.rows, running.wait)
        if num_plain > MOST_DECODED:
            seconds = self._clock() - running.started
            self._seconds_per_token += (seconds / num_plain - self._seconds_per_token) / 2
        for rows, chosen in results:
            if rows.sequence.id not in self._live:
                continue
            added, output = self._update_request(rows, chosen)
            num_given = len(added.token_ids) if added else 0
            added_s = self.times(num_plain + rows.num_drafted) - self.times(num_plain) if rows.num_drafted else 0.0
            rows.state.draft_state.ledger.book(
                spent_s=added_s + min(1, num_given) * running.plain_s, plain_s=num_given * running.plain_s
            )
            if output is None:
                assert added is not None, "what gave nothing has an output that says so"
                unfinished.append(_UnfinishedOutput(rows.sequence.id, rows.state, added))
            else:
                outputs.append(output)
        return outputs, unfinished

    def _launch_rows(self, rows: list[StepRows]) -> Wait:
        """Launch one pass; what it raises is raised by the function that waits for it."""
        self.num_passes += 1
        try:
            return self._runner.launch(rows, self.pages)
        except Exception as error:  # noqa: BLE001 -- raised again, to whoever waits
            fault = error

        def fail() -> list[Verification | None]:
            raise fault

        return fail

    def _wait_for_rows(self, all_rows: list[StepRows], wait: Wait) -> list[_RowsResult]:
        """Wait for one pass. If it raises, run each sequence in a pass of its own; those whose own pass raises have
        failed.

        A pass can be repeated, because it writes only to slots that are not committed. Raises DeviceLost if the card
        can run no further pass.
        """
        try:
            return list(zip(all_rows, wait(), strict=True))
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 -- most likely out of memory; the engine goes on
            check_device(self._pool.device)
            if len(all_rows) == 1:
                return [(rows, _make_fault(error)) for rows in all_rows]
        left = [rows for rows in all_rows if rows.sequence.id in self._live]
        return [result for rows in left for result in self._wait_for_rows([rows], self._launch_rows([rows]))]

    def _update_request(
        self, rows: StepRows, chosen: Verification | EngineFault | None
    ) -> tuple[AddedTokens | None, Output | None]:
        """Apply the result of a pass to one request; return the tokens that it added, and, unless its output just goes
        on, the output.
        """
        sequence, state, request_id = rows.sequence, rows.state, rows.sequence.id
        state.usage.forwards += 1
        if sequence.num_computed < sequence.prompt_len:
            state.usage.prefill_forwards += 1
            state.count_prompt(sequence.num_cached_prompt, sequence.first_plan)
        state.usage.preempted = sequence.num_preempted
        if chosen is None:
            self._keep_kv(rows, rows.num_pending)
            self.scheduler.advance(request_id, rows.num_pending, [])
            return None, Output(request_id, step=GenerationStep((), b""))
        fault = chosen if isinstance(chosen, EngineFault) else chosen.fault
        if isinstance(chosen, Verification) and chosen.fault is not None and rows.num_drafted:
            return None, self._retry_without_draft(request_id)
        if fault is not None:
            return None, self._fail(request_id, fault, discard=True)
        assert isinstance(chosen, Verification)
        added = state.append_choice(chosen.chosen, chosen.logprobs, rows.num_drafted)
        new_ids = added.token_ids
        self._keep_kv(rows, rows.num_pending + len(new_ids) - 1)
        state.usage.near_ties += sum(chosen.near_ties[: len(new_ids)])
        self.scheduler.advance(request_id, sequence.num_pending + len(new_ids) - 1, new_ids)
        if not state.is_finished:
            return added, None
        self._remove(request_id)
        step, result = state.build_step(added), state.build_result()
        if not sequence.in_idle_time:
            self._idle.on_finished(state.request, sequence.root, result)
        return added, Output(request_id, step=step, result=result)

    def _retry_without_draft(self, request_id: int) -> Output:
        """Drop the draft so that the pass is repeated without it: if a draft's values are NaN, 0 * NaN reaches earlier
        rows.
        """
        sequence, state = self._live[request_id]
        sequence.draft = []
        state.stop_drafts()
        self.scheduler.advance(request_id, 0, [])
        return Output(request_id, step=GenerationStep((), b""))

    def _fail(self, request_id: int, error: EngineError, *, discard: bool = False) -> Output:
        """Remove a request and return its error. discard: a pass failed, so KV of earlier passes over the prompt may be
        wrong too.
        """
        if self.reuse is not None:
            self.reuse.drop(self._live[request_id][0])
        self._remove(request_id, discard=discard)
        return Output(request_id, error=error)

    def _reuse_kv(self, sequence: ScheduledSequence, num_cached: int) -> ReusePlan | None:
        return None if self.reuse is None else self.reuse.reuse_kv(self.pages, sequence, num_cached)

    def _keep_kv(self, rows: StepRows, num_final: int) -> None:
        if self.reuse is not None:
            self.reuse.keep(rows, num_final)

    def _remove(self, request_id: int, *, discard: bool = False) -> None:
        sequence, state = self._live.pop(request_id)
        if self._fetches is not None:
            self._fetches.stop(request_id)
        if self.reuse is not None:
            self.reuse.finish(sequence)
        if self.shared is not None and not discard and sequence.status is Status.RUNNING:
            self.shared.keep(self.pages, request_id, sequence.root, sequence.bare_ids)
        self.scheduler.remove(request_id, discard=discard)
        self._speculator.close(request_id)
        for source, usage in state.usage.by_source.items():
            self.drafted.setdefault(source, SourceUsage()).add(usage)


def _make_fault(error: Exception) -> EngineFault:
    fault = EngineFault(f"the request could not be run: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
