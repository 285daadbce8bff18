"""One contestant on one output: which part of it is written, how many tokens a second, in how many passes.

Where an output is too long for a contestant that writes a token a pass, three pieces of it are written instead, at its
beginning, in its middle and at its end, each behind a prompt that is longer by what stands before the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engine.figures import time_to_first
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.jobs import Answer, Arrival, Job, Speculation
from editor.diff import line_opcodes

PIECES = 3


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and our greedy output behind it, which is what is to be written."""

    name: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]

    @property
    def num_new(self) -> int:
        """Tokens to write."""
        return len(self.output_ids)

    def arrival(self, start: int, stop: int) -> Arrival:
        """The request for output tokens [start, stop)."""
        return Arrival(self.prompt_ids + self.output_ids[:start], stop - start)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens written, in how long and in how many forward passes."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_passes: int = 0

    @property
    def tok_s(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds

    @property
    def tokens_a_pass(self) -> float:
        """Tokens of a forward pass."""
        return self.num_tokens / self.num_passes

    def __add__(self, other: Speed) -> Speed:
        return Speed(
            self.num_tokens + other.num_tokens, self.seconds + other.seconds, self.num_passes + other.num_passes
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What one contestant wrote of a task: each piece, as it was asked for and as it came."""

    arrivals: tuple[Arrival, ...]
    answers: tuple[Answer, ...]
    speed: Speed


def pieces(num_tokens: int, budget: int) -> list[tuple[int, int]]:
    """Ranges [start, stop) of an output: all of it if `budget` tokens are enough, else three that share the budget."""
    size = max(budget // PIECES, 2)
    if num_tokens <= max(budget, PIECES * size):
        return [(0, num_tokens)]
    middle = (num_tokens - size) // 2
    return [(start, start + size) for start in (0, middle, num_tokens - size)]


def write(contestant: Contestant, task: Task, salt: str, speculation: Speculation, budget: int) -> Run:
    """Have it write the task's output, or pieces of it.

    A whole output is timed from its request, with the prompt cached. A piece is timed from the end of its first pass
    on, which is left out with its tokens: caches end at borders of blocks, and what is behind them is run again. So is
    the output of a contestant that caches no prompts.
    """
    parts = pieces(task.num_new, budget)
    is_cached = len(parts) == 1 and "prefix" in contestant.abilities
    if is_cached:
        contestant.run(Job(salt, (Arrival(task.prompt_ids, 1),)))
    arrivals, answers, speed = [], [], Speed()
    for start, stop in parts:
        wanted = task.arrival(start, stop)
        (answer,) = contestant.run(Job(salt, (wanted,), speculation))
        speed += behind_cached(answer) if is_cached else behind_first(answer)
        arrivals.append(wanted)
        answers.append(answer)
    return Run(tuple(arrivals), tuple(answers), speed)


def cold_seconds(contestant: Contestant, task: Task, salt: str) -> float:
    """From the request to its first token, with nothing of the prompt cached."""
    (answer,) = contestant.run(Job(salt, (Arrival(task.prompt_ids, 1),)))
    return time_to_first(answer)


def behind_cached(answer: Answer) -> Speed:
    """From the request on."""
    return Speed(len(answer.times), answer.times[-1] - answer.arrived, len(set(answer.times)))


def behind_first(answer: Answer) -> Speed:
    """From the end of the first pass on; all of it where there is no other."""
    first = answer.times[0]
    if answer.times[-1] == first:
        return behind_cached(answer)
    later = [at for at in answer.times if at > first]
    return Speed(len(later), answer.times[-1] - first, len(set(later)))


def equal_lines(own: Sequence[str], other: Sequence[str]) -> float:
    """Share of the lines of two texts that they have in common, in order."""
    same = sum(op.a_end - op.a_start for op in line_opcodes(own, other) if op.equal)
    return 2 * same / (len(own) + len(other))
