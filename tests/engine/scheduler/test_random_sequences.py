"""Random sequences on small pools: no page leaks, no share is wrong, and every sequence ends."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.errors import DoesNotFit, QueueFull
from engine.scheduler import SchedulerConfig, Status
from tests.engine.scheduler.loop import Loop

DOCUMENT = [7, 7, 8, 7, 7, 9, 7, 8, 8, 9, 7, 9, 9, 8, 7, 7, 8, 9, 7, 8]
"""Prompts begin with a part of it, so that they share prefixes."""


@dataclass(frozen=True)
class Ask:
    """A request for `Loop.add`."""

    num_shared: int
    tail: list[int]
    max_new_tokens: int
    priority: int
    wait_s: float | None
    root: bytes
    draft: list[int]


token_ids = st.integers(7, 9)
asks = st.builds(
    Ask,
    num_shared=st.integers(0, len(DOCUMENT)),
    tail=st.lists(token_ids, min_size=1, max_size=6),
    max_new_tokens=st.integers(1, 20),
    priority=st.integers(-2, 2),
    wait_s=st.none() | st.floats(0.1, 5.0),
    root=st.sampled_from([b"a", b"a", b"b"]),
    draft=st.lists(token_ids, max_size=9),
)
configs = st.builds(
    lambda extra_tokens, max_num_seqs, **limits: SchedulerConfig(
        max_num_seqs + extra_tokens, max_num_seqs=max_num_seqs, **limits
    ),
    extra_tokens=st.integers(0, 20),
    prefill_beside_decodes=st.integers(1, 12),
    max_num_seqs=st.integers(1, 6),
    max_waiting=st.integers(1, 8),
    max_overtaken=st.integers(0, 3),
    aging_s=st.sampled_from([None, 0.5, 20.0]),
    least_shared=st.sampled_from([1, 3, 64]),
    max_drafted=st.integers(0, 12),
)


class SchedulerMachine(RuleBasedStateMachine):
    """What callers, the model and the clock may do in any order. `Loop` checks every schedule and all KV."""

    @initialize(
        config=configs,
        num_slots=st.integers(24, 64),
        page_size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([None, None, 1, 5]),
        asked=st.lists(asks, min_size=2, max_size=5),
    )
    def start(
        self, config: SchedulerConfig, num_slots: int, page_size: int, window: int | None, asked: list[Ask]
    ) -> None:
        self.loop = Loop(config, num_slots // page_size, page_size, window)
        self.add(asked)

    @rule(asked=st.lists(asks, min_size=1, max_size=4))
    def add(self, asked: list[Ask]) -> None:
        for ask in asked:
            self._add(ask, DOCUMENT[: ask.num_shared] + ask.tail)

    def _add(self, ask: Ask, prompt: list[int]) -> None:
        deadline = None if ask.wait_s is None else self.loop.now + ask.wait_s
        is_full = self.loop.scheduler.stats().num_waiting >= self.loop.config.max_waiting
        most_pages = self.loop.pages.max_pages(len(prompt) + ask.max_new_tokens, self.loop.config.max_batched_tokens)
        try:
            self.loop.add(
                prompt, ask.max_new_tokens, priority=ask.priority, deadline=deadline, root=ask.root, draft=ask.draft
            )
        except QueueFull:
            assert is_full
        except DoesNotFit:
            assert most_pages > self.loop.pages.num_pages
        else:
            assert not is_full
            assert most_pages <= self.loop.pages.num_pages

    @rule(data=st.data())
    def draft(self, data: st.DataObject) -> None:
        for sequence in self.loop.running:
            sequence.draft = data.draw(st.lists(token_ids, max_size=12))

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """With a random part of each draft accepted."""
        self.loop.step(lambda num_drafted: data.draw(st.integers(0, num_drafted)))

    @rule(num_steps=st.integers(2, 8))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.loop.step()

    @rule(data=st.data(), midway=st.booleans())
    def remove(self, data: st.DataObject, midway: bool) -> None:
        """Cancelled or failed; `midway`: while its step runs."""
        if not self.loop.sequences:
            return
        sequence = data.draw(st.sampled_from(list(self.loop.sequences.values())))
        planned = self.loop.plan() if midway else {}
        self.loop.remove(sequence.id)
        assert sequence.status is Status.FINISHED
        if midway:
            self.loop.run(planned)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        """Time passes, and what has run out of it is removed."""
        self.loop.now += seconds
        expired = self.loop.scheduler.find_expired()
        assert expired == [
            each.id
            for each in self.loop.sequences.values()
            if each.deadline is not None and each.deadline <= self.loop.now
        ]
        for sequence_id in expired:
            self.loop.remove(sequence_id)

    @rule()
    def forget(self) -> None:
        self.loop.pages.forget()

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "loop"):
            self.loop.check_integrity()
            for sequence in self.loop.sequences.values():
                assert sequence.num_overtaken <= self.loop.config.max_overtaken

    def teardown(self) -> None:
        """All that is still there finishes, in hardly more steps than one after the other would take.

        In each step the first one gets on; what others lose, they lose to preemption, of which there is little.
        """
        if hasattr(self, "loop"):
            num_tokens = sum(each.max_len for each in self.loop.sequences.values())
            self.loop.drain(max_steps=2 * num_tokens + 1)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
