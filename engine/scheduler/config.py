"""What one step may hold, and how long the queue may get."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of the scheduler, all in tokens and sequences.

    max_batched_tokens: the most tokens of one step, drafts included. max_drafted: draft tokens that a step may hold
    beyond that while nobody runs or waits beside the one that they belong to. prefill_beside_decodes: the most prompt
    tokens of a step in which anything decodes; with it the gap between two tokens of a stream is bounded (see
    `Scheduler`). prefill_in_idle_time: the most prompt tokens of a step for which nobody waits; who comes in its middle
    waits for its end. max_num_seqs: the most sequences that run at once; each has a token in every step, so no more
    than max_batched_tokens. max_waiting: further requests are refused. max_overtaken: how often a sequence whose prompt
    finds no pages may be overtaken by later ones that do; from then on it is the next to be admitted. aging_s: the
    seconds of waiting that count as one level of priority; None: no wait outweighs a priority. least_shared: a sequence
    waits while so many tokens or more of its prompt are being computed by another that begins alike; below that, to run
    them again is sooner done.
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
