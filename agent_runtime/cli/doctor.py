"""`hunk doctor`: which byte broke the prefix of two prompts, what it was, and what it cost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agent_runtime.cli.doctor_view import print_diagnosis, print_session
from agent_runtime.cli.faults import faults_as_json
from agent_runtime.doctor import Diagnosis, diagnose, read_prompt
from agent_runtime.doctor.counting import Encoder
from agent_runtime.doctor.diagnosis import ASSUMED_SPEED, Speed
from agent_runtime.doctor.recorded import RecordedSession, read_session
from agent_runtime.doctor.session import BrokenTurn, broken_turns, by_cause, diagnose_turn
from agent_runtime.errors import BadRequest
from agent_runtime.models.model_tokenizer import open_tokenizer
from agent_runtime.settings.loading import model_settings


@faults_as_json
def doctor_command(
    first: Annotated[Path | None, typer.Argument(metavar="FIRST", help="A prompt: text, or a request in JSON.")] = None,
    second: Annotated[Path | None, typer.Argument(metavar="SECOND", help="The prompt that came after it.")] = None,
    session: Annotated[
        Path | None, typer.Option("--session", metavar="FILE", help="A recorded session instead: .jsonl, .traj, .gz.")
    ] = None,
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="N", help="That turn of it and the one before; without, all.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Counts its tokens, at its measured speed.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="MODEL", help="Counts its tokens: a name or path.")
    ] = None,
    prefill_speed: Annotated[
        float | None, typer.Option("--prefill-speed", metavar="TOKENS", help="Tokens a second, to tell the seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Say where two prompts part, why, what that cost, and what to do about it.

    Ends with 0 whatever it finds, 2 for bad input, 4 where the tokenizer cannot be had.
    """
    if prefill_speed is not None and not prefill_speed > 0:
        raise BadRequest(f"--prefill-speed is {prefill_speed}: give tokens a second", field="prefill_speed")
    if session is not None:
        if first is not None:
            raise BadRequest("give two prompts, or --session, but not both", field="session")
        recorded = read_session(session)
        encoder, speed = _measures(model, tokenizer, prefill_speed)
        if turn is not None:
            _show(diagnose_turn(recorded, turn, encoder, speed), as_json=as_json)
        else:
            _show_session(recorded, list(broken_turns(recorded, encoder, speed)), as_json=as_json)
        return
    if turn is not None:
        raise BadRequest("--turn is of a --session", field="turn")
    if first is None or second is None:
        raise BadRequest("give two prompts, FIRST and SECOND, or --session FILE", field="first")
    one, other = read_prompt(first), read_prompt(second)
    _show(diagnose(one, other, *_measures(model, tokenizer, prefill_speed)), as_json=as_json)


def _measures(model: str | None, tokenizer: str | None, speed: float | None) -> tuple[Encoder | None, Speed]:
    """What counts tokens, None where they are to be estimated, and the speed of prefill."""
    settings = model_settings(os.environ)
    name = tokenizer or model
    encoder = open_tokenizer(name, settings) if name else None
    if speed is not None:
        return encoder, Speed(speed, "given")
    measured = None
    if model:
        from agent_runtime.doctor.speed import measured_speed

        measured = measured_speed(model, settings)
    return encoder, measured or ASSUMED_SPEED


def _show(diagnosis: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(diagnosis.as_json()))
    else:
        print_diagnosis(diagnosis, Console(highlight=False))


def _show_session(session: RecordedSession, broken: list[BrokenTurn], *, as_json: bool) -> None:
    if not as_json:
        print_session(session, broken, Console(highlight=False))
        return
    rows = [{"turn": each.number, **each.diagnosis.as_json()} for each in broken]
    answer = {"session": session.name, "turns": len(session.turns), "causes": by_cause(broken), "broken": rows}
    typer.echo(json.dumps(answer))
