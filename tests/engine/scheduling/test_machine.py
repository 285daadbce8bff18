"""Random lives of many sequences on small pools: nothing leaks, nothing is wrong, and all come to an end."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.errors import DoesNotFit, QueueFull
from engine.scheduling import SchedulerConfig, Status
from tests.engine.scheduling.loop import Loop

DOCUMENT = [7, 7, 8, 7, 7, 9, 7, 8, 8, 9, 7, 9, 9, 8, 7, 7, 8, 9, 7, 8]
"""Prompts begin with a part of it, so that they share prefixes."""


class SchedulerMachine(RuleBasedStateMachine):
    """What callers, the model and the clock may do in any order. `Loop` checks every schedule and all KV."""

    @initialize(
        max_num_seqs=st.integers(1, 5),
        extra_tokens=st.integers(0, 12),
        prefill_beside_decodes=st.integers(1, 12),
        max_waiting=st.integers(1, 6),
        max_overtaken=st.integers(0, 3),
        aging_s=st.sampled_from([None, 0.5, 20.0]),
        num_pages=st.integers(4, 14),
        page_size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([None, None, 1, 5]),
    )
    def start(
        self,
        max_num_seqs: int,
        extra_tokens: int,
        prefill_beside_decodes: int,
        max_waiting: int,
        max_overtaken: int,
        aging_s: float | None,
        num_pages: int,
        page_size: int,
        window: int | None,
    ) -> None:
        config = SchedulerConfig(
            max_num_seqs + extra_tokens, prefill_beside_decodes, max_num_seqs, max_waiting, max_overtaken, aging_s
        )
        self.loop = Loop(config, num_pages, page_size, window)

    @rule(
        num_shared=st.integers(0, len(DOCUMENT)),
        tail=st.lists(st.integers(7, 9), min_size=1, max_size=8),
        max_new_tokens=st.integers(1, 12),
        priority=st.integers(-2, 2),
        wait_s=st.none() | st.floats(0.1, 5.0),
        root=st.sampled_from([b"a", b"a", b"b"]),
        draft=st.lists(st.integers(7, 9), max_size=9),
    )
    def add(
        self,
        num_shared: int,
        tail: list[int],
        max_new_tokens: int,
        priority: int,
        wait_s: float | None,
        root: bytes,
        draft: list[int],
    ) -> None:
        deadline = None if wait_s is None else self.loop.now + wait_s
        prompt = DOCUMENT[:num_shared] + tail
        num_waiting = self.loop.scheduler.stats().num_waiting
        try:
            self.loop.add(prompt, max_new_tokens, priority=priority, deadline=deadline, root=root, draft=draft)
        except QueueFull:
            assert num_waiting >= self.loop.config.max_waiting
        except DoesNotFit:
            most = self.loop.pages.max_pages(len(prompt) + max_new_tokens, self.loop.config.max_batched_tokens)
            assert most > self.loop.pages.num_pages
        else:
            assert num_waiting < self.loop.config.max_waiting

    @rule(data=st.data())
    def draft(self, data: st.DataObject) -> None:
        for sequence in self.loop.running:
            sequence.draft = data.draw(st.lists(st.integers(7, 9), max_size=12))

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
        expired = self.loop.scheduler.expired()
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

        In each step the first one gets on, and what others lose by it they lose to preemption, of which there is little.
        """
        if hasattr(self, "loop"):
            num_tokens = sum(each.max_len for each in self.loop.sequences.values())
            self.loop.drain(max_steps=2 * num_tokens + 1)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
