"""Whether the pool has pages for a waiting sequence, now or ever."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import DoesNotFit
from engine.paging.pages import KVPages
from engine.scheduling.sequence import Sequence


@dataclass(slots=True)
class Refusal:
    """The state of the pool in which a sequence found no pages: with no more than this, it finds none again."""

    num_available: int
    num_cached: int


class Admission:
    """Gives a sequence the pages of its whole prompt, or none.

    One page for each running sequence must be left, so that who is admitted is not preempted by the next token of the
    others. If nothing runs, a sequence is admitted in any case: alone it fits, `check` has seen to that.
    """

    def __init__(self, pages: KVPages, max_batched_tokens: int) -> None:
        self._pages = pages
        self._max_batched_tokens = max_batched_tokens
        self._refusals: dict[int, Refusal] = {}

    def check(self, sequence: Sequence) -> None:
        """Raises DoesNotFit where the sequence could not be finished with the whole pool to itself."""
        needed = self._pages.max_pages(sequence.max_len, self._max_batched_tokens)
        if needed > self._pages.num_pages:
            num_new = sequence.max_len - sequence.prompt_len
            raise DoesNotFit(
                f"the prompt's {sequence.prompt_len} tokens and up to {num_new} new ones need {needed} pages "
                f"of {self._pages.page_size} tokens and the KV pool has {self._pages.num_pages}; "
                "shorten the prompt, lower max_new_tokens or enlarge the pool"
            )

    def admit(self, sequence: Sequence, num_running: int) -> bool:
        """Open the sequence's pages, with what is cached of its tokens; False: it has to wait, nothing changed."""
        if num_running and not self._may_fit(sequence, num_running + 1):
            return False
        num_available = self._pages.num_available
        num_cached = self._pages.open(sequence.id, sequence.token_ids, sequence.root)
        num_tokens = self._num_reserved(sequence, num_cached)
        num_missing = -(-num_tokens // self._pages.page_size) - len(self._pages.page_table(sequence.id))
        if num_running and num_missing + num_running + 1 > self._pages.num_available:  # growing would evict for nothing
            self._pages.close(sequence.id)
            self._refusals[sequence.id] = Refusal(num_available, num_cached)
            return False
        self._pages.grow(sequence.id, num_tokens)
        self.forget(sequence)
        sequence.num_computed = num_cached
        if not sequence.num_preempted:
            sequence.num_cached_prompt = num_cached
        return True

    def forget(self, sequence: Sequence) -> None:
        """The sequence does not wait any more."""
        self._refusals.pop(sequence.id, None)

    def _may_fit(self, sequence: Sequence, num_left: int) -> bool:
        """Without touching the pool: False where it is certain that pages are missing.

        Cached pages count as in use by others here, and so as free of charge; whether they are shows when they are
        opened. That is repeated only when pages have become available or more of the prompt is cached.
        """
        num_available = self._pages.num_available
        num_cached = self._pages.num_cached(sequence.token_ids, sequence.root)
        if self._most_pages(sequence) - num_cached // self._pages.page_size + num_left > num_available:
            return False
        refusal = self._refusals.get(sequence.id)
        if refusal is None or num_available > refusal.num_available or num_cached > refusal.num_cached:
            return True
        refusal.num_available = num_available
        return False

    def _most_pages(self, sequence: Sequence) -> int:
        """The most pages that it holds at once until all its tokens are computed."""
        return self._pages.max_pages(len(sequence.token_ids), self._max_batched_tokens)

    def _num_reserved(self, sequence: Sequence, num_cached: int) -> int:
        """How many tokens to have pages for at once: all, or with a sliding window what it may hold at once."""
        at_once = self._most_pages(sequence) * self._pages.page_size
        return min(len(sequence.token_ids), max(at_once, num_cached + self._max_batched_tokens))
