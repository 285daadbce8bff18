"""What is left to do for prompts that took over KV, for a time in which nobody waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.types import GenerationRequest, TokenLogprob

MOST_TASKS = 8
"""Tasks that are kept; the oldest goes first: a prompt answered long ago is seldom the beginning of the next one."""

LEAST_ALIKE = 0.5
"""Share of a prompt's tokens that a newer one begins with where it is taken for the same conversation's next turn."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleTask:
    """A request that took over KV and is over: its prompt is to be run exactly.

    root: the key under which its KV is shared. audited_ids: the beginning of its output where its answer is to be
    compared with that of an exact run, else nothing. approximate: what those tokens got on KV that was taken over, once
    they have been run so.
    """

    request: GenerationRequest
    root: bytes
    audited_ids: tuple[int, ...] = ()
    approximate: tuple[TokenLogprob, ...] = ()

    @property
    def is_to_be_compared(self) -> bool:
        """Whether it is to be run on KV that is taken over first."""
        return bool(self.audited_ids) and not self.approximate


@dataclass(slots=True)
class IdleCounts:
    """Of idle work since the start.

    `rebuilt` prompts have exact KV now, which took `rebuilt_tokens` runs of a token; `interrupted` counts how often
    one had to make way, `superseded` those that a newer prompt of the same beginning made useless, `dropped` those for
    which there was no room or that could not be run. `audited` answers were compared.
    """

    rebuilt: int = 0
    rebuilt_tokens: int = 0
    interrupted: int = 0
    superseded: int = 0
    dropped: int = 0
    audited: int = 0


class IdleQueue:
    """Tasks, the newest first.

    Not thread-safe.
    """

    def __init__(self, counts: IdleCounts, most: int = MOST_TASKS) -> None:
        assert most > 0, "a queue that holds nothing"
        self._counts = counts
        self._most = most
        self._tasks: list[IdleTask] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def push(self, task: IdleTask) -> None:
        """Add a task that is newer than all others; those of prompts that begin alike are of no use any more."""
        kept = [each for each in self._tasks if not _supersedes(task, each)]
        self._counts.superseded += len(self._tasks) - len(kept)
        kept.append(task)
        self._counts.dropped += max(0, len(kept) - self._most)
        self._tasks = kept[-self._most :]

    def pop(self) -> IdleTask | None:
        """Take the newest task out, None if there is none."""
        return self._tasks.pop() if self._tasks else None

    def clear(self) -> None:
        """Without any task."""
        self._tasks.clear()


def _supersedes(newer: IdleTask, older: IdleTask) -> bool:
    if newer.root != older.root:
        return False
    prompt = older.request.prompt_ids
    return num_alike(newer.request.prompt_ids, prompt) >= LEAST_ALIKE * len(prompt)


def num_alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens up to the first at which the two differ."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:count]) != np.asarray(other[:count]))
    return int(differ[0]) if len(differ) else count
