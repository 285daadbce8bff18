"""The engine's loop: schedule, run one step, choose, advance. Single-threaded; `Engine` gives it a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.batch_invariant import InvariantDecoder
from engine.decoder import Decoder
from engine.device import made_current
from engine.engine_config import EngineConfig
from engine.errors import DeadlineExceeded, DoesNotFit, EngineError, EngineFault, RequestError
from engine.kv_cache import KVPages, root_key
from engine.kv_pool import KVPool
from engine.layers import AdapterSet
from engine.request import Generation
from engine.reuse import ReusePlan
from engine.reuse.idle_runner import IdleStats, IdleWork
from engine.runner.cuda_graphs import NUM_SPARE_PAGES
from engine.runner.cuda_runner import KernelPasses, runs_by_kernels
from engine.runner.kv_reuse import KVReuse, kv_reuse
from engine.runner.step_rows import DraftRows, PassRows
from engine.runner.step_times import TimedPasses
from engine.runner.torch_runner import Passes, TorchPasses
from engine.runner.verify import Verification
from engine.scheduler import Scheduler
from engine.scheduler import Sequence as ScheduledSequence
from engine.speculation.draft_state import Drafting
from engine.types import GenerationRequest, GenerationStep, Output, Proposer, SourceUsage
from kernels.tuner import use_folder


def pool_and_passes(model: Decoder, config: EngineConfig) -> tuple[KVPool, KVReuse | None, Passes]:
    """The pool, what is kept of earlier prompts beside it, and what runs passes over both.

    Raises EngineError where there is no memory for them, ValueError where the pool would hold nothing.
    """
    device, dtype = model.weights.device, model.weights.dtype
    num_pages, by_kernels = config.num_pages(model.config, dtype), runs_by_kernels(model, config)
    num_spare = NUM_SPARE_PAGES if by_kernels else 0
    pool = KVPool(model.config, num_pages, config.page_size, device, dtype, num_spare)
    reuse = kv_reuse(config, model, pool)
    if not by_kernels:
        return pool, reuse, TorchPasses(model, pool, reuse)
    if config.kernels_dir is not None:
        use_folder(config.kernels_dir)
    return pool, reuse, KernelPasses(model, pool, reuse, config.most_graphs)


_Chosen = tuple[PassRows, Verification | EngineFault | None]
"""A sequence's rows of the pass, and what was chosen behind them; None: within its prompt."""


class EngineCore:
    """Continues many sequences at once on one paged KV pool whose exact prefixes they share.

    `token_bytes[i]` is what token i stands for; it is needed for stop strings and output bytes. Not thread-safe.
    """

    def __init__(
        self,
        model: Decoder,
        token_bytes: Sequence[bytes],
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises EngineError where there is no memory for the pool, ValueError where it would hold nothing."""
        self.model = model = InvariantDecoder(model) if config.batch_invariant else model
        self.config = config
        self.max_seq_len = min(config.max_seq_len, model.config.max_positions)
        nameless = model.config.vocab_size - len(token_bytes)  # vocabularies are padded to round sizes
        self._token_bytes = [*token_bytes, *[b""] * nameless]
        self._clock = clock
        weights = model.weights
        self._pool, self.reuse, self._passes = pool_and_passes(model, config)
        self._idle = IdleWork(
            self._add_idle,
            self.cancel,
            model.fingerprint.hex(),
            rebuild=config.idle_rebuild,
            audit=config.audit,
        )
        self._adapters = AdapterSet(model.config, weights.dtype, weights.device)
        with made_current(weights.device):
            self._timed = TimedPasses(self._passes, model, self._pool, config.pass_times_dir, clock)
        self.times = self._timed.times
        self.num_passes = 0
        self.drafted: dict[str, SourceUsage] = {}
        self._num_added = 0
        self._start_empty()

    def reset(self) -> None:
        """Forget every request and all cached KV; the memory stays."""
        self._start_empty()
        if self.reuse is not None:
            self.reuse.forget()
        self._idle.forget()

    def _start_empty(self) -> None:
        self.pages = KVPages(
            self.config.num_pages(self.model.config, self.model.weights.dtype),
            self.config.page_size,
            window=self.model.config.sliding_window,
            clock=self._clock,
        )
        self._live: dict[int, tuple[ScheduledSequence, Generation]] = {}
        rows = DraftRows(self._live, self.times, lambda: self.scheduler.stats().num_running)
        self.scheduler = Scheduler(
            self.config.scheduler, self.pages, self._clock, rows.lengths, rows.branches, self._take_over
        )

    def load_adapter(self, name: str, folder: Path) -> None:
        """Let requests name a LoRA adapter, a PEFT folder, that stays beside the model; raises WeightsError.

        One of that name is replaced for requests to come.
        """
        self._adapters.load(name, folder)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; the requests that run with it keep it. Raises RequestError where there is none."""
        self._adapters.unload(name)

    def add(self, request: GenerationRequest, proposer: Proposer | None = None) -> int:
        """Take a request and return its id; raises RequestError, DoesNotFit or QueueFull."""
        self._check(request)
        self._idle.make_way()
        return self._add(request, proposer, in_idle_time=False)

    def _add(self, request: GenerationRequest, proposer: Proposer | None, *, in_idle_time: bool) -> int:
        adapter = None if request.adapter is None else self._adapters.get(request.adapter)
        drafting = Drafting(proposer, self.times, self._clock, vocab_size=self.model.config.vocab_size)
        generation = Generation(request, self._token_bytes, drafting, adapter)
        arrival, root = self._clock(), self._root_of(request)
        sequence = ScheduledSequence(
            id=self._num_added,
            token_ids=list(request.prompt_ids),
            max_len=len(request.prompt_ids) + request.max_new_tokens,
            root=root,
            priority=request.priority,
            arrival=arrival,
            deadline=None if request.deadline_s is None else arrival + request.deadline_s,
            retain_s=request.retain_s,
            reuse=self._idle.allowed(request.reuse, root),
            in_idle_time=in_idle_time,
        )
        self.scheduler.add(sequence)
        self._num_added += 1
        self._live[sequence.id] = (sequence, generation)
        return sequence.id

    def _add_idle(self, request: GenerationRequest, root: bytes) -> int:
        """Take a request in idle time; raises RequestError where other weights have its adapter's name by now."""
        if self._root_of(request) != root:
            raise RequestError(f"the adapter {request.adapter!r} was loaded anew")
        return self._add(request, None, in_idle_time=True)

    def _root_of(self, request: GenerationRequest) -> bytes:
        """The key under which the request's KV is shared; raises RequestError where its adapter is not loaded."""
        adapter = None if request.adapter is None else self._adapters.get(request.adapter)
        return root_key(self.model.fingerprint, request.salt, None if adapter is None else adapter.fingerprint.hex())

    def close(self) -> None:
        """Write down what is to outlive the engine."""
        if self.reuse is not None:
            self.reuse.store.close()

    def idle_stats(self) -> IdleStats:
        """What is done while nobody waits."""
        return self._idle.stats()

    def forget_cached(self) -> None:
        """Drop all KV that is only kept for later requests, and what is left to do for them."""
        self._idle.forget()
        self.pages.forget()

    def cancel(self, request_id: int) -> None:
        """Take a request back in any state; its pages are free at once. One that has ended is left as it is."""
        if request_id in self._live:
            self._remove(request_id)

    def has_pending_work(self) -> bool:
        """Whether a step would do something."""
        graphs = self._passes.graphs
        return self.scheduler.has_pending_work() or self._idle.has_work or (graphs is not None and graphs.has_work)

    def step(self) -> list[Output]:
        """One pass over what is scheduled, and what it gave each request that took part.

        Where nothing is to be scheduled, it is one of idle work.
        """
        with made_current(self._pool.device):
            return self._step()

    def _step(self) -> list[Output]:
        if not self.scheduler.has_pending_work():
            self._idle.begin()
        if not self.scheduler.has_pending_work() and self._passes.graphs is not None:
            self._passes.graphs.work()
        outputs = [
            self._fail(each, DeadlineExceeded("the request's time is over")) for each in self.scheduler.expired()
        ]
        outputs += self._draft()
        schedule = self.scheduler.schedule()
        self._pool.copy(self.pages.take_copies())
        outputs += self._outputs(schedule) if schedule else []
        if self.config.check_integrity:
            self.check_integrity()
        return [each for each in outputs if not self._idle.take(each)]

    def check_integrity(self) -> None:
        """The books of scheduler and pages agree, and every request that is not over is in them."""
        self.pages.check_integrity()
        self.scheduler.check_integrity()
        if self.reuse is not None:
            self.reuse.store.check_integrity()
        stats = self.scheduler.stats()
        assert len(self._live) == stats.num_waiting + stats.num_running, "a request is lost"

    def _check(self, request: GenerationRequest) -> None:
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

    def _draft(self) -> list[Output]:
        """Have every sequence that has none drafted; a drafter that raises fails its own request."""
        outputs = []
        most = max(self.config.scheduler.max_drafted, self.config.scheduler.max_batched_tokens)
        for sequence, generation in list(self._live.values()):
            if not sequence.draft:
                try:
                    sequence.draft = generation.draft(most)
                    sequence.branch = generation.branch
                except Exception as error:  # noqa: BLE001 -- a caller's code; the others go on
                    outputs.append(self._fail(sequence.id, _fault(error)))
        return outputs

    def _outputs(self, schedule: dict[int, int]) -> list[Output]:
        """Run what is scheduled and book what it gave."""
        outputs = []
        plain_s = self.times(len(schedule))
        all_rows = [PassRows.of(*self._live[id_], num_tokens) for id_, num_tokens in schedule.items()]
        num_plain = sum(each.num_pending for each in all_rows)
        for rows, chosen in self._run(all_rows):
            output = self._advance(rows, chosen)
            num_given = len(output.step.token_ids) if output.step else 0
            added_s = self.times(num_plain + rows.num_guessed) - self.times(num_plain)
            rows.generation.drafting.balance.book(
                spent_s=added_s + min(1, num_given) * plain_s, plain_s=num_given * plain_s
            )
            outputs.append(output)
        return outputs

    def _run(self, all_rows: list[PassRows]) -> list[_Chosen]:
        """One pass. Where it raises, each sequence has one of its own, and those whose pass raises again have failed.

        A pass can be repeated: it writes where nothing is committed.
        """
        try:
            return self._pass(all_rows)
        except Exception as error:  # noqa: BLE001 -- out of memory, most likely; the engine outlives it
            if len(all_rows) == 1:
                return [(rows, _fault(error)) for rows in all_rows]
        return [result for rows in all_rows for result in self._run([rows])]

    def _pass(self, all_rows: list[PassRows]) -> list[_Chosen]:
        started = self._clock()
        self.num_passes += 1
        found = self._passes.run(all_rows, self.pages)
        if not any(rows.generation.is_forced for rows in all_rows):  # what is given needs no scores
            num_rows = sum(sum(rows.group_sizes) for rows in all_rows)
            num_scored = sum(each.num_scored for each in found if each is not None)
            self._timed.observe(num_rows, num_scored, self._clock() - started)
        return list(zip(all_rows, found, strict=True))

    def _advance(self, rows: PassRows, chosen: Verification | EngineFault | None) -> Output:
        """Book what the pass gave one sequence."""
        sequence, generation, request_id = rows.sequence, rows.generation, rows.sequence.id
        generation.usage.forwards += 1
        generation.usage.prefill_forwards += sequence.num_computed < sequence.prompt_len
        generation.count_prompt(sequence.num_cached_prompt, sequence.first_plan)
        generation.usage.preempted = sequence.num_preempted
        if chosen is None:
            self._keep(rows, rows.num_pending)
            self.scheduler.advance(request_id, rows.num_pending, [])
            return Output(request_id, step=GenerationStep((), b""))
        fault = chosen if isinstance(chosen, EngineFault) else chosen.fault
        if isinstance(chosen, Verification) and chosen.fault is not None and rows.num_guessed:
            return self._without_draft(request_id)
        if fault is not None:
            return self._fail(request_id, fault, discard=True)
        assert isinstance(chosen, Verification)
        try:
            chosen.show()
        except Exception as error:  # noqa: BLE001 -- a caller's code; the others go on
            return self._fail(request_id, _fault(error))
        step = generation.take(chosen.choice, rows.num_drafted, rows.num_branched)
        new_ids = list(step.token_ids)
        if chosen.took_branch:
            rows.keep_branch(self.pages, self._pool, len(new_ids) - 1)
        num_drafted = len(new_ids) - 1
        if chosen.took_branch and sequence.branch is not None:
            num_drafted = min(num_drafted, sequence.branch.at)  # what was moved is not where it was recorded
        self._keep(rows, rows.num_pending + num_drafted)
        generation.usage.near_ties += sum(chosen.near_ties[: len(new_ids)])
        self.scheduler.advance(request_id, sequence.num_pending + len(new_ids) - 1, new_ids)
        if not generation.finished:
            return Output(request_id, step=step)
        self._remove(request_id)
        result = generation.result()
        if not sequence.in_idle_time:
            self._idle.ended(generation.request, sequence.root, result)
        return Output(request_id, step=step, result=result)

    def _without_draft(self, request_id: int) -> Output:
        """Repeat the pass without the draft: if its values are no numbers, 0 * NaN reaches the rows before it."""
        sequence, generation = self._live[request_id]
        sequence.drop_draft()
        generation.stop_drafting()
        self.scheduler.advance(request_id, 0, [])
        return Output(request_id, step=GenerationStep((), b""))

    def _fail(self, request_id: int, error: EngineError, *, discard: bool = False) -> Output:
        """discard: a pass failed, and what earlier ones computed of the prompt may be at fault as well."""
        if self.reuse is not None:
            self.reuse.drop(self._live[request_id][0])
        self._remove(request_id, discard=discard)
        return Output(request_id, error=error)

    def _take_over(self, sequence: ScheduledSequence, num_cached: int) -> ReusePlan | None:
        return None if self.reuse is None else self.reuse.take_over(self.pages, sequence, num_cached)

    def _keep(self, rows: PassRows, num_final: int) -> None:
        if self.reuse is not None:
            self.reuse.keep(rows, num_final)

    def _remove(self, request_id: int, *, discard: bool = False) -> None:
        sequence, generation = self._live.pop(request_id)
        if self.reuse is not None:
            self.reuse.end(sequence)
        self.scheduler.remove(request_id, discard=discard)
        for source, usage in generation.usage.by_source.items():
            self.drafted.setdefault(source, SourceUsage()).add(usage)


def _fault(error: Exception) -> EngineFault:
    fault = EngineFault(f"the request could not be run: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
