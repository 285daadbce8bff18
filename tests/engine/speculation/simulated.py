"""Decoding by drafts without a model or a clock: what the model writes is known, and passes take what a table says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from engine.speculation.draft_length import choose_lengths
from engine.speculation.draft_state import DraftState
from engine.speculation.step_times import StepTimes
from engine.types import Proposer

TWO_CORES = StepTimes({1: 0.026, 2: 0.034, 16: 0.050, 64: 0.125, 128: 0.204, 256: 0.375, 512: 0.722})
"""Of a 0.5B model, in seconds."""

CARD = StepTimes({1: 0.006, 64: 0.0061, 256: 0.0064, 512: 0.0081, 1024: 0.014})


@dataclass
class Run:
    """One request, alone. `seconds` are all passes', `plain_s` those of decoding it a token a pass.

    Its prompt's rows are in neither.
    """

    seconds: float = 0.0
    plain_s: float = 0.0
    num_passes: int = 0
    lengths: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    drafting: DraftState | None = None

    @property
    def speed(self) -> float:
        """Times plain decoding."""
        return self.plain_s / self.seconds


def simulate(
    target: Sequence[int],
    proposer: Proposer,
    times: StepTimes = TWO_CORES,
    *,
    num_prompt: int = 0,
    asking_s: float = 0.0,
    held_up: Mapping[int, float] | None = None,
) -> Run:
    """The request whose output is `target`, with its prompt in one pass.

    Each question to the drafter takes `asking_s`, and those whose number is in `held_up` so much more.
    """
    run, now, output, num_asked = Run(), [0.0], list[int](), count()

    class Asked:
        def propose(self, output_ids, max_tokens):  # type: ignore[no-untyped-def]
            took = asking_s + (held_up or {}).get(next(num_asked), 0.0)
            now[0] += took
            run.seconds += took
            return proposer.propose(output_ids, max_tokens)

    drafting = run.drafting = DraftState(Asked(), times, lambda: now[0], vocab_size=1 << 20)
    while len(output) < len(target):
        num_rows = max(1, num_prompt) if not output else 1
        room = min(1024, len(target) - len(output) - 1)
        guessed = list(drafting.propose(output, room))
        (length,) = choose_lengths([drafting.build_candidate(len(guessed), 1)], num_rows, 1, 1024, times)
        given = list(target[len(output) : len(output) + 1])
        while len(given) <= length and given[-1] == guessed[len(given) - 1]:
            given.append(target[len(output) + len(given)])
        output += given
        drafting.observe(given, length, len(output))
        spent, plain = times(num_rows + length) - times(num_rows) + times(1), len(given) * times(1)
        drafting.ledger.book(spent, plain)
        run.seconds, run.plain_s = run.seconds + spent, run.plain_s + plain
        run.num_passes += 1
        run.lengths.append(length)
        run.written.append(len(given))
    assert output == list(target)
    return run
