"""`hunk doctor` and `hunk prefix`: examine the installation, and explain what broke a prompt's prefix."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from agent_runtime.cli.options import JSON
from agent_runtime.cli.render import print_faults_as_json
from agent_runtime.config import resolve
from agent_runtime.config.sources import make_model_settings
from agent_runtime.doctor import Diagnosis, diagnose, read_prompt
from agent_runtime.doctor.diagnosis import (
    ASSUMED_SPEED,
    BrokenTurn,
    Encoder,
    Excerpt,
    Speed,
    count_causes,
    diagnose_turn,
    find_broken_turns,
    find_measured_speed,
)
from agent_runtime.doctor.installation import Finding, examine
from agent_runtime.doctor.transcripts import RecordedSession, read_session
from agent_runtime.errors import BadRequest
from agent_runtime.models.tokenizer import open_tokenizer

MAX_TURNS = 20
"""Broken turns that are printed; --json has all."""

_SHOWN = dict.fromkeys((*range(32), 127), "?") | {ord("\t"): " ", ord("\r"): "\u240d", ord("\n"): "\u240a"}
"""Control characters, each shown as one character, so that the mark stands below its position."""


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the diagnosis of two prompts."""
    if diagnosis.status == "same":
        _print("The prompts are equal: everything is reused.", console, "green")
        return
    if diagnosis.status == "continued":
        _print("The second prompt begins with all of the first: nothing broke.", console, "green")
        _print(_format_cost(diagnosis), console)
        return
    position, cause = diagnosis.position, diagnosis.cause
    assert position is not None, "a broken prefix has a position"
    assert cause is not None, "and a cause"
    token = "" if position.token is None else f", token {position.token:,}"
    part = f" in {position.part}" if position.part else ""
    where = f"line {position.line:,}, column {position.column:,}{token}"
    _print(f"The prefix breaks at byte {position.byte:,} ({where}){part}:", console)
    _print(f"  {cause.what}", console, "bold red")
    console.print()
    _print_side("first ", diagnosis.before, console)
    _print_side("second", diagnosis.after, console)
    console.print()
    _print(_format_cost(diagnosis), console)
    _print(f"To do: {cause.advice}", console, "bold")
    if diagnosis.later:
        _print("After it these differ as well:", console)
        for line, other in diagnosis.later:
            _print(f"  line {line:,}: {other.what}", console)


def print_session(session: RecordedSession, broken: list[BrokenTurn], console: Console) -> None:
    """Print the turns that broke the prefix, and the diagnosis of the costliest."""
    if not broken:
        _print(
            f"{session.name}: each of {len(session.turns)} turns begins with the one before: nothing broke.",
            console,
            "green",
        )
        return
    causes = ", ".join(f"{number} x {kind}" for kind, number in count_causes(broken).items())
    lost = sum(each.diagnosis.num_recomputed for each in broken)
    _print(f"{session.name}: {len(broken)} of {len(session.turns)} turns broke the prefix ({causes});", console)
    _print(f"{lost:,} tokens{_format_accuracy(broken[0].diagnosis)} were computed again.", console)
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


def _format_cost(diagnosis: Diagnosis) -> str:
    counts, speed = diagnosis.counts, diagnosis.speed
    share = diagnosis.num_recomputed / max(1, counts.num_tokens)
    source = {
        "given": "as given",
        "measured": "as measured on this machine",
        "assumed": "assumed; --prefill-speed gives yours",
    }[speed.source]
    cost = (
        f"Of {counts.num_tokens:,} tokens{_format_accuracy(diagnosis)} {counts.num_kept:,} are reused and "
        f"{diagnosis.num_recomputed:,} ({share:.1%}) computed: {diagnosis.seconds:,.1f} s at "
        f"{speed.tokens_per_s:,.0f} tokens a second ({source})."
    )
    if diagnosis.status == "broken":
        same = counts.num_same / max(1, diagnosis.num_recomputed)
        cost += (
            f" {counts.num_same:,} of these ({same:.1%}) are text that the first prompt has too: `fast` reuses such."
        )
    return cost


def _format_accuracy(diagnosis: Diagnosis) -> str:
    return " (estimated from bytes; --model counts them)" if diagnosis.counts.estimated else ""


def _print_side(name: str, excerpt: Excerpt | None, console: Console) -> None:
    assert excerpt is not None, "both sides have a position"
    _print(f"  {name}  {excerpt.text.translate(_SHOWN)}", console)
    _print(f"  {' ' * len(name)}  {' ' * excerpt.mark}^", console, "red")


def _print(text: str, console: Console, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


FIRST = Annotated[Path | None, typer.Argument(metavar="FIRST", help="A prompt: text, or a request in JSON.")]
SECOND = Annotated[Path | None, typer.Argument(metavar="SECOND", help="The prompt that came after it.")]
SESSION = Annotated[
    Path | None,
    typer.Option("--session", metavar="FILE", help="A recorded session instead of two prompts: .jsonl, .traj, .gz."),
]
TURN = Annotated[
    int | None,
    typer.Option("--turn", metavar="N", help="Compare this turn with the one before. Default: all turns."),
]
MODEL = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Count this model's tokens, at its measured speed.")
]
TOKENIZER = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="MODEL", help="Count tokens with this model's tokenizer: a name or path."),
]
PREFILL_SPEED = Annotated[
    float | None, typer.Option("--prefill-speed", metavar="TOKENS", help="Prefill speed in tokens a second.")
]


@print_faults_as_json
def doctor_command(
    first: FIRST = None,
    second: SECOND = None,
    session: SESSION = None,
    turn: TURN = None,
    model: MODEL = None,
    tokenizer: TOKENIZER = None,
    prefill_speed: PREFILL_SPEED = None,
    as_json: JSON = False,
) -> None:
    """Examine the installation, or two versions of a prompt as `hunk prefix` does.

    Without arguments it looks at the processor, the memory, torch, the models, the port and the disk, and says what to
    do. Ends with 0 whatever it finds.
    """
    if any(value is not None for value in (first, second, session, turn, model, tokenizer, prefill_speed)):
        _explain_prefix(first, second, session, turn, _Counting(model, tokenizer, prefill_speed), as_json=as_json)
        return
    findings = examine(resolve(os.environ))
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        print_findings(findings, Console(highlight=False))


def print_findings(findings: Iterable[Finding], console: Console) -> None:
    """Print the findings about an installation, each with what to do."""
    marks = {"good": Text("ok  ", "green"), "note": Text("note", "yellow"), "bad": Text("bad ", "bold red")}
    for finding in findings:
        console.print(marks[finding.status] + Text(f"  {finding.name:<12} {finding.what}"), soft_wrap=True)
        if finding.advice:
            console.print(Text(f"{'':19}{finding.advice}", style="bold"), soft_wrap=True)


@print_faults_as_json
def prefix_command(
    first: FIRST = None,
    second: SECOND = None,
    session: SESSION = None,
    turn: TURN = None,
    model: MODEL = None,
    tokenizer: TOKENIZER = None,
    prefill_speed: PREFILL_SPEED = None,
    as_json: JSON = False,
) -> None:
    """Show which byte broke the prefix of two prompts, and why.

    Says what that cost, and how to avoid it. Ends with 0 whatever it finds, 2 for bad input, 4 where the tokenizer is
    not available.
    """
    _explain_prefix(first, second, session, turn, _Counting(model, tokenizer, prefill_speed), as_json=as_json)


class _Counting(NamedTuple):
    """How tokens are counted, and what they cost."""

    model: str | None
    tokenizer: str | None
    prefill_speed: float | None


def _explain_prefix(
    first: Path | None, second: Path | None, session: Path | None, turn: int | None, how: _Counting, *, as_json: bool
) -> None:
    if how.prefill_speed is not None and not how.prefill_speed > 0:
        raise BadRequest(f"--prefill-speed is {how.prefill_speed}: give tokens a second", field="prefill_speed")
    if session is not None:
        if first is not None:
            raise BadRequest("give two prompts, or --session, but not both", field="session")
        recorded = read_session(session)
        encoder, speed = _open_encoder(how)
        if turn is not None:
            _print_result(diagnose_turn(recorded, turn, encoder, speed), as_json=as_json)
        else:
            _print_session_result(recorded, list(find_broken_turns(recorded, encoder, speed)), as_json=as_json)
        return
    if turn is not None:
        raise BadRequest("--turn needs a --session", field="turn")
    if first is None or second is None:
        raise BadRequest("give two prompts, FIRST and SECOND, or --session FILE", field="first")
    one, other = read_prompt(first), read_prompt(second)
    _print_result(diagnose(one, other, *_open_encoder(how)), as_json=as_json)


def _open_encoder(how: _Counting) -> tuple[Encoder | None, Speed]:
    """Open the tokenizer, None where tokens are to be estimated, and find the prefill speed."""
    settings = make_model_settings(os.environ)
    model, tokenizer, speed = how
    name = tokenizer or model
    encoder = open_tokenizer(name, settings) if name else None
    if speed is not None:
        return encoder, Speed(speed, "given")
    measured = None
    if model:
        measured = find_measured_speed(model, settings)
    return encoder, measured or ASSUMED_SPEED


def _print_result(diagnosis: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(diagnosis.to_json()))
    else:
        print_diagnosis(diagnosis, Console(highlight=False))


def _print_session_result(session: RecordedSession, broken: list[BrokenTurn], *, as_json: bool) -> None:
    if not as_json:
        print_session(session, broken, Console(highlight=False))
        return
    rows = [{"turn": each.number, **each.diagnosis.to_json()} for each in broken]
    answer = {"session": session.name, "turns": len(session.turns), "causes": count_causes(broken), "broken": rows}
    typer.echo(json.dumps(answer))
