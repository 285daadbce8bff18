"""Run the copy benchmark of one model: each case in all contestants in turns, so that drift meets all alike."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.copy.cases import FRESH_REQUEST, GOAL, CopyCase
from benchmarks.engine.workload import compute_ttft
from benchmarks.harness import say
from benchmarks.peers.contest import Agreement, Entrants, Margin, compare
from benchmarks.peers.environments import PEERS
from benchmarks.peers.protocol import Answer, Arrival, Contestant, ContestantFailed, Job, Speculation
from editor.diff import line_opcodes

PLAIN, OWN = "plain", "own"
"""A token a pass, and with what a contestant has for speculation."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How much of what a peer wrote is what we wrote: leading equal tokens, and the share of equal lines."""

    agreement: Agreement
    equal_lines: float


@dataclass(slots=True)
class Outcome:
    """All that was measured of one model. `samples`: by case, contestant and figure, a value of each round.

    `parted`: why a case has no speed. `settings`: each peer's settings with their tokens a second, best first.
    """

    versions: dict[str, str] = field(default_factory=dict)
    cases: dict[str, CopyCase] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))  # by case
    not_measured: dict[str, str] = field(default_factory=dict)
    parted: dict[str, str] = field(default_factory=dict)
    samples: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    plain: dict[str, Agreement] = field(default_factory=dict)
    likeness: dict[tuple[str, str, str], Likeness] = field(default_factory=dict)  # by case, peer, plain or own
    settings: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    num_rounds: int = 0


PIECES = 3


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and our greedy output after it, which is what is to be written."""

    name: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]

    @property
    def num_new(self) -> int:
        return len(self.output_ids)

    def arrival(self, start: int, stop: int) -> Arrival:
        """Return the request for output tokens [start, stop)."""
        return Arrival(self.prompt_ids + self.output_ids[:start], stop - start)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens written, in how long and in how many forward passes."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_passes: int = 0

    @property
    def tok_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def tokens_a_pass(self) -> float:
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


def cut_pieces(num_tokens: int, budget: int) -> list[tuple[int, int]]:
    """Ranges [start, stop) of an output: all of it if `budget` tokens are enough, else three that share the budget."""
    size = max(budget // PIECES, 2)
    if num_tokens <= max(budget, PIECES * size):
        return [(0, num_tokens)]
    middle = (num_tokens - size) // 2
    return [(start, start + size) for start in (0, middle, num_tokens - size)]


def write(contestant: Contestant, task: Task, salt: str, speculation: Speculation, budget: int) -> Run:
    """Have it write the task's output, or pieces of it.

    A whole output is timed from its request, with the prompt cached. A piece is timed from the end of its first pass
    on, which is left out with its tokens: caches end at borders of blocks, and what is after them is run again. So is
    the output of a contestant that caches no prompts.
    """
    parts = cut_pieces(task.num_new, budget)
    is_cached = len(parts) == 1 and "prefix" in contestant.abilities
    if is_cached:
        contestant.run(Job(salt, (Arrival(task.prompt_ids, 1),)))
    arrivals, answers, speed = [], [], Speed()
    for start, stop in parts:
        wanted = task.arrival(start, stop)
        (answer,) = contestant.run(Job(salt, (wanted,), speculation))
        speed += measure_cached(answer) if is_cached else measure_after_first(answer)
        arrivals.append(wanted)
        answers.append(answer)
    return Run(tuple(arrivals), tuple(answers), speed)


def measure_cold_seconds(contestant: Contestant, task: Task, salt: str) -> float:
    """From the request to its first token, with nothing of the prompt cached."""
    (answer,) = contestant.run(Job(salt, (Arrival(task.prompt_ids, 1),)))
    return compute_ttft(answer)


def measure_cached(answer: Answer) -> Speed:
    return Speed(len(answer.times), answer.times[-1] - answer.arrived, len(set(answer.times)))


def measure_after_first(answer: Answer) -> Speed:
    """From the end of the first pass on; all of it where there is no other."""
    first = answer.times[0]
    if answer.times[-1] == first:
        return measure_cached(answer)
    later = [at for at in answer.times if at > first]
    return Speed(len(later), answer.times[-1] - first, len(set(later)))


def compare_lines(own: Sequence[str], other: Sequence[str]) -> float:
    """Return the share of the lines of two texts that they have in common, in order."""
    same = sum(op.a_end - op.a_start for op in line_opcodes(own, other) if op.equal)
    return 2 * same / (len(own) + len(other))


REPEATS = 3
"""Runs of a drafted output with its prompt cached, in each round."""

LEAST_OF_EXPECTED, MOST_OF_EXPECTED, SPARE_TOKENS = 0.8, 1.05, 32
"""An output that is shorter than this share of the right one is no copy; a longer one is cut."""

TOKENS_OF_A_PASS, SPARE_PASSES = 8, 64
"""An output with fewer tokens a pass is no copy either: small models lose their way."""

SEARCH_TOKENS = 384
"""Tokens on which the settings of a peer are tried."""

FRESH_TOKENS = 128

MOST_LINES = {"vllm": 3000, "transformers": 1000, "openvino": 1000, "llama.cpp": 300}
"""The longest files that a peer copies. The second and third cache no prompts, the last reads them slowly."""

WHOLE_TOKENS = 4096
"""In the goal's case a peer at its best setting writes the whole output, if it is no longer than this."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is measured: tokens of an output that are written plainly, tokens that a peer drafts for, rounds.

    `minutes`: no round begins later than this. `fresh`: whether output that copies nothing is measured.
    """

    plain_tokens: int
    peer_tokens: int
    rounds: int
    minutes: float
    fresh: bool


class Contest:
    """One model's contest. `text_of` makes text of token ids."""

    def __init__(self, entrants: Entrants, limits: Limits, text_of: Callable[[Sequence[int]], str]) -> None:
        self._ours = entrants.ours
        self._peers = list(entrants.peers)
        self._limits = limits
        self._text_of = text_of
        self.outcome = Outcome(versions={one.name: one.version for one in entrants.all})

    def hold(self, cells: Iterable[Iterable[CopyCase]]) -> Outcome:
        """Measure everything; each cell has some cases to choose from."""
        began = time.perf_counter()
        for drawn in cells:
            self._prepare(drawn)
        self._choose_settings()
        for number in range(self._limits.rounds):
            if number and time.perf_counter() - began > 60 * self._limits.minutes:
                say(f"{self._limits.minutes:g} minutes are over: {number} of {self._limits.rounds} rounds were run")
                break
            for name in self.outcome.tasks:
                self._measure(name, number)
            goal = self.outcome.tasks.get(GOAL) or next(iter(self.outcome.tasks.values()), None)
            if goal is not None and self._limits.fresh:
                self._measure_fresh(goal, number)
            self.outcome.num_rounds = number + 1
        return self.outcome

    def _prepare(self, drawn: Iterable[CopyCase]) -> None:
        """Take the first of the cases drawn for a cell whose file the model copies."""
        for number, case in enumerate(drawn):
            found = self._ours.ask("prepare", case.to_json())
            self.outcome.cases[case.name] = case
            if "too_large" in found:
                self.outcome.not_measured[case.name] = found["too_large"]
                say(f"{case.name}: the whole file is left out: {found['too_large']}")
                return
            say(f"{case.name} ({case.style}): {len(found['prompt_ids'])} tokens of prompt")
            made = self._ours.ask("reference", _make_bounds(case, found["expected_tokens"]))
            if "gave_up" not in made and len(made["token_ids"]) >= LEAST_OF_EXPECTED * found["expected_tokens"]:
                self._take(case, found, made, number)
                return
            self.outcome.not_measured[case.name] = f"the model copied none of {number + 1} files"
            say(f"{case.name} ({case.style}): the model does not copy this file")

    def _take(self, case: CopyCase, found: dict[str, Any], made: dict[str, Any], number: int) -> None:
        outcome = self.outcome
        outcome.not_measured.pop(case.name, None)
        task = Task(case.name, tuple(found["prompt_ids"]), tuple(made["token_ids"]))
        outcome.tasks[case.name] = task
        outcome.facts[case.name] = {
            "prompt_tokens": len(task.prompt_ids),
            "expected_tokens": found["expected_tokens"],
            "prepare_seconds": found["prepare_seconds"],
            "files_not_copied": number,
            "exact": made["text"].removesuffix("\n") == case.after.removesuffix("\n"),
            "equal_lines": compare_lines(made["text"].split("\n"), case.after.split("\n")),
        }
        say(f"{case.name}: {task.num_new} tokens")

    def _choose_settings(self) -> None:
        """Try each peer's settings on the first case."""
        for peer in list(self._peers):
            task = self._goal(peer)
            if task is not None:
                self._leave_out_on_failure(peer, lambda peer=peer, task=task: self._try_settings(peer, task))  # type: ignore[misc]

    def _try_settings(self, peer: Contestant, task: Task) -> None:
        rates: list[tuple[str, float]] = []
        for name, speculation in PEERS[peer.name].speculations.items():
            if (method := speculation.get("method")) and method not in peer.abilities:
                say(f"{peer.name}: {name} is left out: it is not installed")
                continue
            run = write(peer, task, f"{task.name}:settings", speculation, SEARCH_TOKENS)
            rates.append((name, run.speed.tok_s))
            say(f"{peer.name}: {name}: {run.speed.tok_s:.1f} tok/s, {run.speed.tokens_a_pass:.1f} tokens a pass")
        self.outcome.settings[peer.name] = sorted(rates, key=lambda rate: -rate[1])

    def _goal(self, peer: Contestant) -> Task | None:
        fitting = [task for task in self.outcome.tasks.values() if self._takes_part(peer, task.name)]
        return next((task for task in fitting if task.name == GOAL), fitting[0] if fitting else None)

    def _takes_part(self, peer: Contestant, name: str) -> bool:
        case = self.outcome.cases[name]
        return case.num_lines <= 1.1 * MOST_LINES[peer.name] and name.endswith(("x1", "300x10"))

    def _measure(self, name: str, number: int) -> None:
        peers = [peer for peer in self._peers if self._takes_part(peer, name)]
        works: list[Callable[[], None]] = [lambda: self._measure_ours(name, number)]
        works += [
            lambda peer=peer: self._leave_out_on_failure(peer, lambda: self._measure_peer(peer, name, number))  # type: ignore[misc]
            for peer in peers
        ]
        for work in works if number % 2 == 0 else reversed(works):
            work()

    def _measure_ours(self, name: str, number: int) -> None:
        ours, task, note = self._ours, self.outcome.tasks[name], self._noter(name, self._ours.name)
        salt, whole = f"{name}:{number}", (task.arrival(0, task.num_new),)
        (cold,) = ours.run(Job(salt, whole, {"case": name}))
        note("cold_seconds", cold.times[-1] - cold.arrived)
        for _ in range(REPEATS):
            (answer,) = ours.run(Job(salt, whole, {"case": name}))
            speed = measure_cached(answer)
            note("tok_s", speed.tok_s)
            note("seconds", speed.seconds)
            note("passes", speed.num_passes)
        plain = write(ours, task, salt, {}, self._limits.plain_tokens or task.num_new)
        note("plain_tok_s", plain.speed.tok_s)
        if number == 0:
            self._compare_with_plain(task, answer, plain)
        say(
            f"round {number + 1}: {name}: {ours.name}: {speed.tok_s:,.0f} tok/s in {speed.num_passes} passes, plain "
            f"{plain.speed.tok_s:.1f}; {cold.times[-1] - cold.arrived:.1f} s with the prompt"
        )

    def _compare_with_plain(self, task: Task, drafted: Answer, plain: Run) -> None:
        """What was drafted is our plain output, or there is no speed.

        Both are compared with the output that is to be written, whose beginning is what the plain pieces stand after.
        """
        whole, wanted = (task.arrival(0, task.num_new),), Answer(0.0, task.output_ids, ())
        found = _compare_run(plain, task.output_ids, self._margin(), task)
        found += compare(whole, [wanted], [drafted], self._margin())
        self.outcome.plain[task.name] = found
        if found.parted_far or found.first_tokens_wrong:
            self.outcome.parted[task.name] = (
                f"the drafted output is not our plain output: of {found.outputs} pieces "
                f"{found.parted_far + found.first_tokens_wrong} part from it at no near-tie"
            )

    def _measure_peer(self, peer: Contestant, name: str, number: int) -> None:
        task, note, salt = self.outcome.tasks[name], self._noter(name, peer.name), f"{name}:{number}"
        note("first_seconds", measure_cold_seconds(peer, task, salt))
        plain = write(peer, task, salt, {}, self._limits.plain_tokens or task.num_new)
        note("plain_tok_s", plain.speed.tok_s)
        runs = {PLAIN: plain}
        if settings := self.outcome.settings.get(peer.name):
            speculation = PEERS[peer.name].speculations[settings[0][0]]
            budget = WHOLE_TOKENS if name == GOAL else self._limits.peer_tokens
            runs[OWN] = write(peer, task, salt, speculation, budget)
            note("tok_s", runs[OWN].speed.tok_s)
            note("tokens_a_pass", runs[OWN].speed.tokens_a_pass)
        for way, run in runs.items():
            if number == 0:
                self.outcome.likeness[name, peer.name, way] = self._likeness(task, run)
            say(f"round {number + 1}: {name}: {peer.name}, {way}: {run.speed.tok_s:.1f} tok/s")

    def _likeness(self, task: Task, run: Run) -> Likeness:
        theirs = "".join(self._text_of(answer.token_ids) for answer in run.answers)
        ours = "".join(self._text_of(_cut_output(task, arrival, task.output_ids)) for arrival in run.arrivals)
        agreement = _compare_run(run, task.output_ids, self._margin(), task)
        return Likeness(agreement, compare_lines(ours.split("\n"), theirs.split("\n")))

    def _measure_fresh(self, goal: Task, number: int) -> None:
        """Something else is written than what the drafts know: drafted and plain by turns."""
        prompt = tuple(self._ours.ask("chat", FRESH_REQUEST)["prompt_ids"])
        note, salt = self._noter("fresh", self._ours.name), f"fresh:{number}"
        wanted = (Arrival(prompt, FRESH_TOKENS),)
        self._ours.run(Job(salt, (Arrival(prompt, 1),)))
        for repeat in range(REPEATS):
            ways: dict[str, Speculation] = {"plain_tok_s": {}, "tok_s": {"case": goal.name}}
            found = {}
            for figure in sorted(ways, reverse=bool(repeat % 2)):
                (found[figure],) = self._ours.run(Job(salt, wanted, ways[figure]))
                note(figure, measure_cached(found[figure]).tok_s)
            note("ratio", self._last("fresh", "tok_s") / self._last("fresh", "plain_tok_s"))
            note("passes", measure_cached(found["tok_s"]).num_passes)
        plain, drafted = found["plain_tok_s"], found["tok_s"]
        agreement = compare(wanted, [plain], [drafted], self._margin())
        self.outcome.plain["fresh"] = agreement
        if not agreement.comparable:
            self.outcome.parted["fresh"] = (
                "the drafted output is not our plain output, and parts from it at no near-tie"
            )

    def _last(self, name: str, figure: str) -> float:
        return self.outcome.samples[name, self._ours.name, figure][-1]

    def _leave_out_on_failure(self, peer: Contestant, work: Callable[[], None]) -> None:
        """A peer that fails is left out from then on."""
        try:
            work()
        except ContestantFailed as error:
            self._peers = [one for one in self._peers if one is not peer]
            self.outcome.left_out[peer.name] = str(error)
            say(f"{peer.name} is left out: {error}")

    def _noter(self, name: str, contestant: str) -> Callable[[str, float], None]:
        samples = self.outcome.samples
        return lambda figure, value: samples[name, contestant, figure].append(value)

    def _margin(self) -> Margin:
        def margin(context: Sequence[int], first: int, second: int) -> float:
            found: float = self._ours.ask("margin", {"context": context, "first": first, "second": second})
            return found

        return margin


def _make_bounds(case: CopyCase, num_expected: int) -> dict[str, Any]:
    return {
        "case": case.name,
        "salt": f"{case.name}:reference",
        "most_tokens": int(MOST_OF_EXPECTED * num_expected) + SPARE_TOKENS,
        "most_passes": num_expected // TOKENS_OF_A_PASS + SPARE_PASSES,
    }


def _compare_run(run: Run, output_ids: Sequence[int], margin: Margin, task: Task) -> Agreement:
    """Return how far a run's pieces are what stands in their places of an output."""
    own = [Answer(0.0, _cut_output(task, arrival, output_ids), ()) for arrival in run.arrivals]
    return compare(run.arrivals, own, run.answers, margin)


def _cut_output(task: Task, arrival: Arrival, output_ids: Sequence[int]) -> tuple[int, ...]:
    start = len(arrival.prompt_ids) - len(task.prompt_ids)
    return tuple(output_ids[start : start + arrival.num_new])
