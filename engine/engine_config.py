"""The configuration of an engine: context length, KV memory, scheduler limits, KV reuse and idle work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.reuse.idle_queue import AuditConfig


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


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and options of one engine; raises ValueError for values that make no sense.

    max_seq_len: the most tokens of prompt and output together. kv_bytes: memory for keys and values, allocated at the
    start (None: for `kv_sequences` of `max_seq_len`, or for as many as may run if those are fewer). kv_share: on a
    card, if `kv_bytes` is None, the share of the free memory that keys and values, graphs and the largest pass take
    together; the largest pass is run once to measure it. page_size: tokens
    of a page; prefixes are shared to the token whatever it is. pass_times_dir: a folder for measured step times, by
    which the engine chooses draft lengths, one file for each model and machine; if it has none, they are measured at
    the start, in a second. None: default times, so that equal requests take equal passes. batch_invariant: a token's
    result has the same bits whatever else is in the pass and however it is drafted; this is slower
    (`InvariantDecoder`). span_bytes: memory for the KV that requests with a `reuse` other than exact may take, besides
    the pool, allocated at the start; 0: nothing is stored and all requests are exact, as with a model that has a
    sliding window. span_dir: a folder that keeps this KV across starts, up to `span_disk_bytes`. span_key:
    authenticates the folder's files (HMAC), so that only processes with the key can write KV there. idle_rebuild: while
    no request is pending, run prompts that reused KV exactly, so that the next turn finds exact KV. audit: which of
    their answers are then compared with exact ones, and what follows. most_graphs: step shapes that are captured as
    CUDA graphs, 0 for none. kernels_dir: the folder into which `hunk tune` writes the constants of
    kernels; None: their defaults. tier_url: a Valkey server through which engines share the KV of prefixes, "" for
    none; `tier_key`, 32 bytes, protects names and values there. check_integrity: check the books at the end of every
    step, for tests.
    """

    max_seq_len: int = 16384
    kv_bytes: int | None = None
    page_size: int = 32
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_sequences: int = 2
    kv_share: float | None = None
    pass_times_dir: Path | None = None
    batch_invariant: bool = False
    span_bytes: int = 0
    span_dir: Path | None = None
    span_key: bytes = field(default=b"", repr=False)
    span_disk_bytes: int = 4 << 30
    idle_rebuild: bool = False
    audit: AuditConfig = field(default_factory=AuditConfig)
    most_graphs: int = 48
    kernels_dir: Path | None = None
    tier_url: str = field(default="", repr=False)
    tier_key: bytes = field(default=b"", repr=False)
    check_integrity: bool = False

    def __post_init__(self) -> None:
        if self.span_bytes < 0 or self.span_disk_bytes < 1:
            raise ValueError(f"span_bytes {self.span_bytes} and span_disk_bytes {self.span_disk_bytes} are sizes")
        if self.most_graphs < 0:
            raise ValueError(f"most_graphs is {self.most_graphs}; it must be at least 0 (passes run as they come)")
        for name in ("max_seq_len", "kv_bytes", "kv_sequences", "page_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.kv_share is not None and not 0.0 < self.kv_share <= 1.0:
            raise ValueError(f"kv_share is {self.kv_share}; it is a share of the free memory, in (0, 1]")
        if self.max_seq_len < 2:
            raise ValueError("max_seq_len is 1; a prompt and an output need a token each")

    def num_pages(self, page_bytes: int) -> int:
        """Return the number of pages that the memory holds, given the bytes of one."""
        if self.kv_bytes is None:
            return min(self.kv_sequences, self.scheduler.max_num_seqs) * -(-self.max_seq_len // self.page_size)
        if self.kv_bytes < page_bytes:
            raise ValueError(f"kv_bytes is {self.kv_bytes}; one page of {self.page_size} tokens takes {page_bytes}")
        return self.kv_bytes // page_bytes
