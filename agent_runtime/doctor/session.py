"""A recorded session, turn by turn: which turns do not continue the one before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from agent_runtime.doctor.counting import Encoder
from agent_runtime.doctor.diagnosis import ASSUMED_SPEED, Diagnosis, Speed, diagnose
from agent_runtime.doctor.prompt_text import prompt_of_turn
from agent_runtime.doctor.recorded import RecordedSession
from agent_runtime.errors import BadRequest


@dataclass(frozen=True, slots=True)
class BrokenTurn:
    """A turn, counted from 1, whose prompt does not begin with that of the turn before."""

    number: int
    diagnosis: Diagnosis


def diagnose_turn(
    session: RecordedSession, number: int, encoder: Encoder | None = None, speed: Speed = ASSUMED_SPEED
) -> Diagnosis:
    """A turn, counted from 1, against the one before; raises BadRequest where there are no such two."""
    if not 2 <= number <= len(session.turns):
        what = f"the turns 2 to {len(session.turns)} can be compared with the one before them"
        if len(session.turns) < 2:
            what = "a session of two turns is needed"
        raise BadRequest(f"{session.name} has {len(session.turns)} turns, so there is no turn {number}: {what}")
    before, now = (prompt_of_turn(session.turns[each]) for each in (number - 2, number - 1))
    return diagnose(before, now, encoder, speed)


def broken_turns(
    session: RecordedSession, encoder: Encoder | None = None, speed: Speed = ASSUMED_SPEED
) -> Iterator[BrokenTurn]:
    """All turns that break the prefix of the one before, in order."""
    before = None
    for number, turn in enumerate(session.turns, start=1):
        now = prompt_of_turn(turn)
        if before is not None and not now.text.startswith(before.text):
            yield BrokenTurn(number, diagnose(before, now, encoder, speed))
        before = now


def by_cause(turns: list[BrokenTurn]) -> dict[str, int]:
    """How many turns each kind of cause broke, most first."""
    kinds = Counter(each.diagnosis.cause.kind for each in turns if each.diagnosis.cause is not None)
    return dict(kinds.most_common())
