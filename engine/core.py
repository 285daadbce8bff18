"""The engine's loop: schedule a step, run it, choose tokens, update the requests. Single-threaded; `Engine` gives it a
thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from engine.batch_invariant import InvariantDecoder
from engine.decoder import Decoder
from engine.device import check_device, use_device
from engine.engine_config import EngineConfig
from engine.errors import DeadlineExceeded, DoesNotFit, EngineError, EngineFault, RequestError
from engine.kv_cache import KVPages, root_key
from engine.kv_pool import KVPool, page_bytes
from engine.layers import AdapterSet
from engine.prefix_tier import build_shared_prefixes
from engine.prefix_tier.fetch_queue import FetchQueue
from engine.request import RequestState
from engine.reuse import ReusePlan
from engine.reuse.idle_runner import IdleRunner, IdleStats
from engine.runner.cuda_graphs import NUM_SPARE_PAGES
from engine.runner.cuda_runner import KernelRunner, can_run_kernels
from engine.runner.kv_reuse import KVReuse, build_kv_reuse
from engine.runner.step_rows import DraftBudget, StepRows, Verification
from engine.runner.torch_runner import ModelRunner, TorchRunner, load_or_measure_times
from engine.scheduler import ScheduledSequence, Scheduler, Status
from engine.speculation.draft_state import DraftState
from engine.types import GenerationRequest, GenerationStep, Output, Proposer, SourceUsage
from kernels.tuner import use_folder

log = logging.getLogger(__name__)


def build_runner(model: Decoder, config: EngineConfig) -> tuple[KVPool, KVReuse | None, ModelRunner]:
    """Allocate the KV pool and build the KV reuse (if configured) and the model runner over it.

    Raises EngineError if there is no memory for them, ValueError if the pool would hold no page.
    """
    device, dtype = model.weights.device, model.weights.kv_dtype
    by_kernels = can_run_kernels(model, config)
    if by_kernels and device.type == "cuda" and config.kv_share is not None and config.kv_bytes is None:
        with use_device(device):
            config = replace(config, kv_bytes=_choose_kv_bytes(model, config, config.kv_share))
    num_pages = config.num_pages(page_bytes(model.config, config.page_size, dtype))
    num_spare = NUM_SPARE_PAGES if by_kernels else 0
    pool = KVPool(model.config, num_pages, config.page_size, device, dtype, num_spare)
    reuse = build_kv_reuse(config, model, pool)
    if not by_kernels:
        return pool, reuse, TorchRunner(model, pool, reuse)
    if config.kernels_dir is not None:
        use_folder(config.kernels_dir)
    return pool, reuse, KernelRunner(model, pool, reuse, config.most_graphs)


NUM_PASS_RESERVES = 2
"""Memory of the largest pass that is left beside the KV: for the pass, and for what graphs keep."""


def _choose_kv_bytes(model: Decoder, config: EngineConfig, share: float) -> int:
    """Run the largest pass of the scheduler once, and return the bytes that a card has for KV beside it.

    Raises EngineError if that is less than a page.
    """
    num_rows = max(config.scheduler.max_batched_tokens, config.scheduler.max_drafted + 1)
    num_rows = min(num_rows, config.max_seq_len, model.config.max_positions)
    device, dtype = model.weights.device, model.weights.kv_dtype
    pool = KVPool(model.config, -(-num_rows // config.page_size), config.page_size, device, dtype, NUM_SPARE_PAGES)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    KernelRunner(model, pool, None).measure(num_rows)
    pass_bytes = torch.cuda.max_memory_allocated(device) - before
    del pool
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    kv_bytes = int(share * free_bytes) - NUM_PASS_RESERVES * pass_bytes - config.span_bytes
    if kv_bytes < page_bytes(model.config, config.page_size, dtype):
        raise EngineError(
            f"the card has {free_bytes / 1e9:.1f} GB left beside the weights, and a pass over {num_rows} tokens takes "
            f"{pass_bytes / 1e9:.1f} GB: there is no memory for KV"
        )
    log.info(
        "the card has %.1f GB left; a pass over %d tokens takes %.2f GB, and KV gets %.1f GB",
        free_bytes / 1e9, num_rows, pass_bytes / 1e9, kv_bytes / 1e9,
    )  # fmt: skip
    return kv_bytes


_RowsResult = tuple[StepRows, Verification | EngineFault | None]
"""A sequence's rows of a pass, and the choice made after them; None inside a prompt."""


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
    ) -> None:
        """Raises EngineError if there is no memory for the pool, ValueError if it would hold no page."""
        self.model = model = InvariantDecoder(model) if config.batch_invariant else model
        self.config = config
        self.max_seq_len = min(config.max_seq_len, model.config.max_positions)
        nameless = model.config.vocab_size - len(token_bytes)  # vocabularies are padded to round sizes
        self._token_bytes = [*token_bytes, *[b""] * nameless]
        self._clock = clock
        weights = model.weights
        self._pool, self.reuse, self._runner = build_runner(model, config)
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
            window=self.model.config.sliding_window,
            clock=self._clock,
        )
        self._live: dict[int, tuple[ScheduledSequence, RequestState]] = {}
        drafts = DraftBudget(self._live, self.times, lambda: self.scheduler.stats().num_running)
        self.scheduler = Scheduler(
            self.config.scheduler, self.pages, self._clock, drafts.choose_lengths, self._reuse_kv
        )

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter, a PEFT folder, under a name that requests may use. Raises WeightsError.

        It stays unmerged beside the model, and replaces an earlier one of this name for new requests.
        """
        self._adapters.load(name, folder)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that run with it keep it. Raises RequestError if there is none of this name."""
        self._adapters.unload(name)

    def add(self, request: GenerationRequest, proposer: Proposer | None = None) -> int:
        """Add a request and return its id; raises RequestError, DoesNotFit or QueueFull."""
        self._check_request(request)
        self._idle.preempt()
        return self._add(request, proposer, in_idle_time=False)

    def _add(self, request: GenerationRequest, proposer: Proposer | None, *, in_idle_time: bool) -> int:
        adapter = None if request.adapter is None else self._adapters.get(request.adapter)
        drafting = DraftState(proposer, self.times, self._clock, vocab_size=self.model.config.vocab_size)
        state = RequestState(request, self._token_bytes, drafting, adapter)
        arrival, root = self._clock(), self._compute_root(request)
        sequence = ScheduledSequence(
            id=self._num_added,
            token_ids=list(request.prompt_ids),
            max_len=len(request.prompt_ids) + request.max_new_tokens,
            root=root,
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
        if self._compute_root(request) != root:
            raise RequestError(f"the adapter {request.adapter!r} was loaded anew")
        return self._add(request, None, in_idle_time=True)

    def _compute_root(self, request: GenerationRequest) -> bytes:
        """Return the key under which the request's KV is shared; raises RequestError if its adapter is not loaded."""
        adapter = None if request.adapter is None else self._adapters.get(request.adapter)
        return root_key(self.model.fingerprint, request.salt, None if adapter is None else adapter.fingerprint.hex())

    def close(self) -> None:
        """Write the stored KV to disk, if there is a disk tier, and leave the shared tier."""
        if self._fetches is not None:
            self._fetches.close()
        if self.reuse is not None:
            self.reuse.store.close()

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
        if self._fetches or self.scheduler.has_pending_work():
            return True
        return self._idle.has_work or (graphs is not None and graphs.has_work)

    def step(self) -> list[Output]:
        """Run one pass over the scheduled tokens and return what it gave each request.

        If no request is pending, the pass is one of idle work.
        """
        with use_device(self._pool.device):
            return self._step()

    def _step(self) -> list[Output]:
        outputs = self._admit_fetched()
        if self._fetches and not self.scheduler.has_pending_work():
            return outputs
        if not self.scheduler.has_pending_work():
            self._idle.start_next()
        if not self.scheduler.has_pending_work() and self._runner.graphs is not None:
            self._runner.graphs.capture_next()
        outputs += [
            self._fail(each, DeadlineExceeded("the request's time is over")) for each in self.scheduler.find_expired()
        ]
        outputs += self._propose_drafts()
        if self._fetches is not None:
            self._fetches.meet(self.pages, self.scheduler)
        schedule = self.scheduler.schedule()
        self._pool.copy(self.pages.take_copies())
        outputs += self._execute(schedule) if schedule else []
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
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise RequestError(f"the prompt holds a token id outside [0, {vocab_size})")
        if not all(0 <= token_id < vocab_size for token_id in request.forced_ids):
            raise RequestError(f"forced_ids holds a token id outside [0, {vocab_size})")
        if not all(0 <= token_id < vocab_size for token_id in request.logit_bias):
            raise RequestError(f"logit_bias holds a token id outside [0, {vocab_size})")

    def _propose_drafts(self) -> list[Output]:
        """Ask the drafter of every sequence without a draft; a drafter that raises fails its own request."""
        outputs = []
        most = max(self.config.scheduler.max_drafted, self.config.scheduler.max_batched_tokens)
        for sequence, state in list(self._live.values()):
            if not sequence.draft:
                try:
                    sequence.draft = state.propose_draft(most)
                except Exception as error:  # noqa: BLE001 -- the caller's code; the other requests go on
                    outputs.append(self._fail(sequence.id, _make_fault(error)))
        return outputs

    def _execute(self, schedule: dict[int, int]) -> list[Output]:
        """Run the scheduled tokens and update their requests."""
        outputs = []
        plain_s, started = self.times(len(schedule)), self._clock()
        all_rows = [StepRows.from_schedule(*self._live[id_], num_tokens) for id_, num_tokens in schedule.items()]
        num_plain = sum(each.num_pending for each in all_rows)
        results = self._run_rows(all_rows)
        if num_plain > MOST_DECODED:
            self._seconds_per_token += ((self._clock() - started) / num_plain - self._seconds_per_token) / 2
        for rows, chosen in results:
            output = self._update_request(rows, chosen)
            num_given = len(output.step.token_ids) if output.step else 0
            added_s = self.times(num_plain + rows.num_drafted) - self.times(num_plain)
            rows.state.draft_state.ledger.book(
                spent_s=added_s + min(1, num_given) * plain_s, plain_s=num_given * plain_s
            )
            outputs.append(output)
        return outputs

    def _run_rows(self, all_rows: list[StepRows]) -> list[_RowsResult]:
        """Run one pass. If it raises, run each sequence in a pass of its own; those whose own pass raises have failed.

        A pass can be repeated, because it writes only to slots that are not committed. Raises DeviceLost if the card
        can run no further pass.
        """
        try:
            self.num_passes += 1
            return list(zip(all_rows, self._runner.run(all_rows, self.pages), strict=True))
        except Exception as error:  # noqa: BLE001 -- most likely out of memory; the engine goes on
            check_device(self._pool.device)
            if len(all_rows) == 1:
                return [(rows, _make_fault(error)) for rows in all_rows]
        return [result for rows in all_rows for result in self._run_rows([rows])]

    def _update_request(self, rows: StepRows, chosen: Verification | EngineFault | None) -> Output:
        """Apply the result of a pass to one request."""
        sequence, state, request_id = rows.sequence, rows.state, rows.sequence.id
        state.usage.forwards += 1
        state.usage.prefill_forwards += sequence.num_computed < sequence.prompt_len
        state.count_prompt(sequence.num_cached_prompt, sequence.first_plan)
        state.usage.preempted = sequence.num_preempted
        if chosen is None:
            self._keep_kv(rows, rows.num_pending)
            self.scheduler.advance(request_id, rows.num_pending, [])
            return Output(request_id, step=GenerationStep((), b""))
        fault = chosen if isinstance(chosen, EngineFault) else chosen.fault
        if isinstance(chosen, Verification) and chosen.fault is not None and rows.num_drafted:
            return self._retry_without_draft(request_id)
        if fault is not None:
            return self._fail(request_id, fault, discard=True)
        assert isinstance(chosen, Verification)
        step = state.append_choice(chosen.choice, rows.num_drafted)
        new_ids = list(step.token_ids)
        self._keep_kv(rows, rows.num_pending + len(new_ids) - 1)
        state.usage.near_ties += sum(chosen.near_ties[: len(new_ids)])
        self.scheduler.advance(request_id, sequence.num_pending + len(new_ids) - 1, new_ids)
        if not state.is_finished:
            return Output(request_id, step=step)
        self._remove(request_id)
        result = state.build_result()
        if not sequence.in_idle_time:
            self._idle.on_finished(state.request, sequence.root, result)
        return Output(request_id, step=step, result=result)

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
            self.shared.keep(self.pages, request_id, sequence.root, sequence.token_ids)
        self.scheduler.remove(request_id, discard=discard)
        for source, usage in state.usage.by_source.items():
            self.drafted.setdefault(source, SourceUsage()).add(usage)


def _make_fault(error: Exception) -> EngineFault:
    fault = EngineFault(f"the request could not be run: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
