"""Limits of a step and of the waiting queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of the scheduler, in tokens and sequences; raises ValueError for values that make no sense.

    max_batched_tokens: the most tokens of one step, drafts included. max_drafted: the most draft tokens of a step
    beyond that, while no other sequence runs or waits. prefill_beside_decodes: the most prompt tokens of a step in
    which a sequence decodes; it bounds the gap between two tokens of a stream (see `Scheduler`). prefill_in_idle_time:
    the most prompt tokens of a step of idle work; a request that arrives waits for its end. max_num_seqs: the most
    sequences that run at once; each has a token in every step, so it is at most max_batched_tokens. max_waiting: the
    most requests that wait; more are refused. max_overtaken: how often a sequence that finds no pages for its prompt
    may be overtaken by later ones; after that it is admitted next. aging_s: the seconds of waiting that count as one
    level of priority; None: waiting never outweighs priority. least_shared: a sequence waits while another one computes
    at least this many tokens that its prompt has too; fewer are computed again.
    """

    max_batched_tokens: int = 512
    prefill_beside_decodes: int = 256
    max_num_seqs: int = 64
    max_waiting: int = 256
    max_overtaken: int = 16
    aging_s: float | None = 30.0
    least_shared: int = 64
    max_drafted: int = 1024
    prefill_in_idle_time: int = 64

    def __post_init__(self) -> None:
        for name in (
            "max_batched_tokens",
            "prefill_beside_decodes",
            "prefill_in_idle_time",
            "max_num_seqs",
            "max_waiting",
            "least_shared",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_num_seqs > self.max_batched_tokens:
            raise ValueError(
                f"max_num_seqs is {self.max_num_seqs} and max_batched_tokens {self.max_batched_tokens}; "
                "every running sequence needs a token in each step, so raise the second or lower the first"
            )
        if self.max_drafted < 0:
            raise ValueError(f"max_drafted is {self.max_drafted}; it must be at least 0 (no draft exceeds a step)")
        if self.max_overtaken < 0:
            raise ValueError(f"max_overtaken is {self.max_overtaken}; it must be at least 0 (nobody is overtaken)")
        if self.aging_s is not None and not 0.0 < self.aging_s <= 1e9:  # a NaN fails too
            raise ValueError(f"aging_s is {self.aging_s}; it must lie in (0, 1e9], or be None for no aging")
