"""One model's contest: every case in all contestants in turns, round after round, so that drift meets all alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.copy.cases import FRESH_REQUEST, GOAL, CopyCase
from benchmarks.copy.measuring import Run, Task, behind_cached, cold_seconds, equal_lines, write
from benchmarks.copy.outcome import OWN, PLAIN, Likeness, Outcome
from benchmarks.copy.passes import Pass
from benchmarks.engine.agreement import Agreement, Margin, compare
from benchmarks.engine.contestants import Entrants
from benchmarks.peers.contestant import Contestant, ContestantFailed
from benchmarks.peers.environments import PEERS
from benchmarks.peers.jobs import Answer, Arrival, Job, Speculation

REPEATS = 3
"""Runs of a drafted output with its prompt cached, in each round."""

LEAST_OF_EXPECTED, MOST_OF_EXPECTED, SPARE_TOKENS = 0.8, 1.05, 32
"""An output that is shorter than this share of the right one is no copy; a longer one is cut."""

TOKENS_OF_A_PASS, SPARE_PASSES = 8, 64
"""An output with fewer tokens a pass is no copy either: small models lose their way."""

SEARCH_TOKENS = 384
"""Tokens on which the settings of a peer are tried."""

FRESH_TOKENS = 128
PASS_SIZES = (1, 16, 64, 128, 256, 512, 1024)

MOST_LINES = {"vllm": 3000, "transformers": 1000, "llama.cpp": 300}
"""The longest files that a peer copies. The second caches no prompts, the third reads them at a tenth of the speed."""

WHOLE_TOKENS = 4096
"""In the goal's case a peer at its best setting writes the whole output, if it is no longer than this."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is measured: tokens of an output that are written plainly, tokens that a peer drafts for, rounds.

    `minutes`: no round begins later than this. `extras`: which of `scope`, `fresh`, `passes` are measured.
    """

    plain_tokens: int
    peer_tokens: int
    rounds: int
    minutes: float
    extras: frozenset[str]


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
                _say(f"{self._limits.minutes:g} minutes are over: {number} of {self._limits.rounds} rounds were run")
                break
            for name in self.outcome.tasks:
                self._measure(name, number)
            self._measure_extras(number)
            self.outcome.num_rounds = number + 1
        return self.outcome

    def _prepare(self, drawn: Iterable[CopyCase]) -> None:
        """Take the first of the cases drawn for a cell whose file the model copies."""
        for number, case in enumerate(drawn):
            found = self._ours.ask("prepare", case.to_json())
            self.outcome.cases[case.name] = case
            if "too_large" in found:
                self.outcome.not_measured[case.name] = found["too_large"]
                _say(f"{case.name}: the whole file is left out: {found['too_large']}")
                return
            _say(f"{case.name} ({case.style}): {len(found['prompt_ids'])} tokens of prompt")
            made = self._ours.ask("reference", _bounds(case, found["expected_tokens"]))
            if "gave_up" not in made and len(made["token_ids"]) >= LEAST_OF_EXPECTED * found["expected_tokens"]:
                self._take(case, found, made, number)
                return
            self.outcome.not_measured[case.name] = f"the model copied none of {number + 1} files"
            _say(f"{case.name} ({case.style}): the model does not copy this file")

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
            "equal_lines": equal_lines(made["text"].split("\n"), case.after.split("\n")),
        }
        job = Job(f"{case.name}:reference", (task.arrival(0, task.num_new),), {"case": case.name})
        outcome.passes[case.name] = [Pass.from_json(raw) for raw in self._ours.ask("trace", job.to_json())]
        _say(f"{case.name}: {task.num_new} tokens in {len(outcome.passes[case.name])} passes")

    def _choose_settings(self) -> None:
        """Try each peer's settings on the first case."""
        for peer in list(self._peers):
            task = self._goal(peer)
            if task is not None:
                self._guarded(peer, lambda peer=peer, task=task: self._try_settings(peer, task))  # type: ignore[misc]

    def _try_settings(self, peer: Contestant, task: Task) -> None:
        rates: list[tuple[str, float]] = []
        for name, speculation in PEERS[peer.name].speculations.items():
            if (method := speculation.get("method")) and method not in peer.abilities:
                _say(f"{peer.name}: {name} is left out: it is not installed")
                continue
            run = write(peer, task, f"{task.name}:settings", speculation, SEARCH_TOKENS)
            rates.append((name, run.speed.tok_s))
            _say(f"{peer.name}: {name}: {run.speed.tok_s:.1f} tok/s, {run.speed.tokens_a_pass:.1f} tokens a pass")
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
            lambda peer=peer: self._guarded(peer, lambda: self._measure_peer(peer, name, number))  # type: ignore[misc]
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
            speed = behind_cached(answer)
            note("tok_s", speed.tok_s)
            note("seconds", speed.seconds)
            note("passes", speed.num_passes)
        plain = write(ours, task, salt, {}, self._limits.plain_tokens or task.num_new)
        note("plain_tok_s", plain.speed.tok_s)
        if number == 0:
            self._compare_with_plain(task, answer, plain)
        _say(
            f"round {number + 1}: {name}: {ours.name}: {speed.tok_s:,.0f} tok/s in {speed.num_passes} passes, plain "
            f"{plain.speed.tok_s:.1f}; {cold.times[-1] - cold.arrived:.1f} s with the prompt"
        )

    def _compare_with_plain(self, task: Task, drafted: Answer, plain: Run) -> None:
        """What was drafted is our plain output, or no speed is told.

        Both are compared with the output that is to be written, whose beginning is what the plain pieces stand behind.
        """
        whole, wanted = (task.arrival(0, task.num_new),), Answer(0.0, task.output_ids, ())
        found = _agreement(plain, task.output_ids, self._margin(), task)
        found += compare(whole, [wanted], [drafted], self._margin())
        self.outcome.plain[task.name] = found
        if found.parted_far or found.first_tokens_wrong:
            self.outcome.parted[task.name] = (
                f"the drafted output is not our plain output: of {found.outputs} pieces "
                f"{found.parted_far + found.first_tokens_wrong} part from it at no near-tie"
            )

    def _measure_peer(self, peer: Contestant, name: str, number: int) -> None:
        task, note, salt = self.outcome.tasks[name], self._noter(name, peer.name), f"{name}:{number}"
        note("first_seconds", cold_seconds(peer, task, salt))
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
            _say(f"round {number + 1}: {name}: {peer.name}, {way}: {run.speed.tok_s:.1f} tok/s")

    def _likeness(self, task: Task, run: Run) -> Likeness:
        theirs = "".join(self._text_of(answer.token_ids) for answer in run.answers)
        ours = "".join(self._text_of(_slice(task, arrival, task.output_ids)) for arrival in run.arrivals)
        agreement = _agreement(run, task.output_ids, self._margin(), task)
        return Likeness(agreement, equal_lines(ours.split("\n"), theirs.split("\n")))

    def _measure_extras(self, number: int) -> None:
        extras, outcome = self._limits.extras, self.outcome
        goal = outcome.tasks.get(GOAL) or next(iter(outcome.tasks.values()), None)
        if "scope" in extras:
            for name in outcome.cases:
                outcome.applies[name].append(self._ours.ask("apply", {"case": name, "scope": "auto"}))
                _say(
                    f"round {number + 1}: {name}: an apply of scope auto: {outcome.applies[name][-1]['seconds']:.2f} s"
                )
        if goal is not None and "fresh" in extras:
            self._measure_fresh(goal, number)
        if goal is not None and "passes" in extras:
            sizes = [size for size in PASS_SIZES if size <= goal.num_new]
            asked = {"prompt_ids": goal.prompt_ids, "sizes": sizes, "repeats": 3, "reference": goal.output_ids}
            for size, seconds in self._ours.ask("verify", asked):
                outcome.pass_seconds[size] += seconds

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
                note(figure, behind_cached(found[figure]).tok_s)
            note("ratio", self._last("fresh", "tok_s") / self._last("fresh", "plain_tok_s"))
            note("passes", behind_cached(found["tok_s"]).num_passes)
        plain, drafted = found["plain_tok_s"], found["tok_s"]
        agreement = compare(wanted, [plain], [drafted], self._margin())
        self.outcome.plain["fresh"] = agreement
        if not agreement.comparable:
            self.outcome.parted["fresh"] = (
                "the drafted output is not our plain output, and parts from it at no near-tie"
            )

    def _last(self, name: str, figure: str) -> float:
        return self.outcome.samples[name, self._ours.name, figure][-1]

    def _guarded(self, peer: Contestant, work: Callable[[], None]) -> None:
        """A peer that fails is left out from then on."""
        try:
            work()
        except ContestantFailed as error:
            self._peers = [one for one in self._peers if one is not peer]
            self.outcome.left_out[peer.name] = str(error)
            _say(f"{peer.name} is left out: {error}")

    def _noter(self, name: str, contestant: str) -> Callable[[str, float], None]:
        samples = self.outcome.samples
        return lambda figure, value: samples[name, contestant, figure].append(value)

    def _margin(self) -> Margin:
        def margin(context: Sequence[int], first: int, second: int) -> float:
            found: float = self._ours.ask("margin", {"context": context, "first": first, "second": second})
            return found

        return margin


def _bounds(case: CopyCase, num_expected: int) -> dict[str, Any]:
    return {
        "case": case.name,
        "salt": f"{case.name}:reference",
        "most_tokens": int(MOST_OF_EXPECTED * num_expected) + SPARE_TOKENS,
        "most_passes": num_expected // TOKENS_OF_A_PASS + SPARE_PASSES,
    }


def _agreement(run: Run, output_ids: Sequence[int], margin: Margin, task: Task) -> Agreement:
    """How far a run's pieces are what stands in their places of an output."""
    own = [Answer(0.0, _slice(task, arrival, output_ids), ()) for arrival in run.arrivals]
    return compare(run.arrivals, own, run.answers, margin)


def _slice(task: Task, arrival: Arrival, output_ids: Sequence[int]) -> tuple[int, ...]:
    start = len(arrival.prompt_ids) - len(task.prompt_ids)
    return tuple(output_ids[start : start + arrival.num_new])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
