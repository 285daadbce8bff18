"""Shows a person what broke a prefix: the place, both sides with a mark, the cost, the remedy."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from agent_runtime.doctor import Diagnosis
from agent_runtime.doctor.diagnosis import Excerpt
from agent_runtime.doctor.recorded import RecordedSession
from agent_runtime.doctor.session import BrokenTurn, by_cause

MAX_TURNS = 20
"""Broken turns that are listed; --json has all."""

_SHOWN = dict.fromkeys((*range(32), 127), "?") | {ord("\t"): " ", ord("\r"): "\u240d", ord("\n"): "\u240a"}
"""One character each, so that the mark stands below its place."""


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """All that there is to say about two prompts."""
    if diagnosis.status == "same":
        _print("The prompts are equal: all of it is reused.", console, "green")
        return
    if diagnosis.status == "continued":
        _print("The second prompt begins with all of the first: nothing broke.", console, "green")
        _print(_cost(diagnosis), console)
        return
    place, cause = diagnosis.place, diagnosis.cause
    assert place is not None, "what is broken is broken somewhere"
    assert cause is not None, "and by something"
    token = "" if place.token is None else f", token {place.token:,}"
    where = f" in {place.part}" if place.part else ""
    _print(
        f"The prefix breaks at byte {place.byte:,} (line {place.line:,}, column {place.column:,}{token}){where}:",
        console,
    )
    _print(f"  {cause.what}", console, "bold red")
    console.print()
    _print_side("first ", diagnosis.before, console)
    _print_side("second", diagnosis.after, console)
    console.print()
    _print(_cost(diagnosis), console)
    _print(f"To do: {cause.advice}", console, "bold")
    if diagnosis.later:
        _print("Behind it these differ as well:", console)
        for line, other in diagnosis.later:
            _print(f"  line {line:,}: {other.what}", console)


def print_session(session: RecordedSession, broken: list[BrokenTurn], console: Console) -> None:
    """Which turns broke the prefix, and the costliest of them in full."""
    if not broken:
        _print(
            f"{session.name}: each of {len(session.turns)} turns begins with the one before: nothing broke.",
            console,
            "green",
        )
        return
    causes = ", ".join(f"{number} x {kind}" for kind, number in by_cause(broken).items())
    lost = sum(each.diagnosis.num_recomputed for each in broken)
    _print(f"{session.name}: {len(broken)} of {len(session.turns)} turns broke the prefix ({causes});", console)
    _print(f"{lost:,} tokens{_about(broken[0].diagnosis)} were computed again.", console)
    for each in broken[:MAX_TURNS]:
        cause = each.diagnosis.cause
        _print(
            f"  turn {each.number}: {cause.what if cause else ''}; {each.diagnosis.num_recomputed:,} tokens", console
        )
    if len(broken) > MAX_TURNS:
        _print(f"  ({len(broken) - MAX_TURNS} more; --json has all)", console)
    worst = max(broken, key=lambda each: each.diagnosis.num_recomputed)
    console.print()
    _print(f"Turn {worst.number} cost most (--turn shows any other).", console)
    print_diagnosis(worst.diagnosis, console)


def _cost(diagnosis: Diagnosis) -> str:
    counts, speed = diagnosis.counts, diagnosis.speed
    share = diagnosis.num_recomputed / max(1, counts.num_tokens)
    said = {
        "given": "as given",
        "measured": "as measured on this machine",
        "assumed": "assumed; --prefill-speed gives yours",
    }[speed.source]
    cost = (
        f"Of {counts.num_tokens:,} tokens{_about(diagnosis)} {counts.num_kept:,} are reused and "
        f"{diagnosis.num_recomputed:,} ({share:.1%}) computed: {diagnosis.seconds:,.1f} s at "
        f"{speed.tokens_per_s:,.0f} tokens a second ({said})."
    )
    if diagnosis.status == "broken":
        same = counts.num_same / max(1, diagnosis.num_recomputed)
        cost += (
            f" {counts.num_same:,} of these ({same:.1%}) are text that the first prompt has too: `fast` reuses such."
        )
    return cost


def _about(diagnosis: Diagnosis) -> str:
    return " (estimated from bytes; --model counts them)" if diagnosis.counts.estimated else ""


def _print_side(name: str, excerpt: Excerpt | None, console: Console) -> None:
    assert excerpt is not None, "both sides have a place"
    _print(f"  {name}  {excerpt.text.translate(_SHOWN)}", console)
    _print(f"  {' ' * len(name)}  {' ' * excerpt.mark}^", console, "red")


def _print(text: str, console: Console, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
