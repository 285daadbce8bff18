"""How much of what was asked for was stored, and what the store is filled with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpanStats:
    """One look at a span store; counts since the start, unless they say what is there now.

    num_queried, num_hit: tokens that were looked for behind exact prefixes, and those of them that were found.
    num_evicted: entries whose memory was needed. num_entries, num_tokens, num_bytes: what is in memory now, of
    num_slots tokens. num_absent_tokens: what only a tier has now. num_tier_hits: entries that were read from the tier.
    num_tier_misses: those that should have been there and were not, or were damaged. num_tier_faults: entries that it
    could not write. num_tier_dropped: entries that were not written because too many waited to be.
    """

    num_queried: int
    num_hit: int
    num_evicted: int
    num_entries: int
    num_tokens: int
    num_bytes: int
    num_slots: int
    num_absent_tokens: int = 0
    num_tier_hits: int = 0
    num_tier_misses: int = 0
    num_tier_faults: int = 0
    num_tier_dropped: int = 0

    @property
    def num_missed(self) -> int:
        """Tokens that were looked for and not found."""
        return self.num_queried - self.num_hit

    @property
    def hit_rate(self) -> float:
        """Share of the tokens looked for that was found."""
        return self.num_hit / self.num_queried if self.num_queried else 0.0
