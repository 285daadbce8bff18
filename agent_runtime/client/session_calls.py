"""The calls of a session: files into its context, questions, edits."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from agent_runtime.client import values
from agent_runtime.client.call import Call, path_of
from agent_runtime.shapes import result_from_json
from agent_runtime.types import ApplyResult, Certainty, Decide, Draft, Mode, ReuseName, ScopeName, Usage, total_usage
from editor.types import FormatName, Policy

if TYPE_CHECKING:
    from agent_runtime.sessions import Answer, ReadFile, SessionState


@dataclass(frozen=True, slots=True)
class Turn:
    """What one question or edit took; `timings` are milliseconds."""

    kind: Literal["ask", "apply"]
    usage: Usage
    timings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a session has taken so far, turn by turn."""

    turns: tuple[Turn, ...] = ()

    @property
    def total(self) -> Usage:
        """All turns together."""
        return total_usage(turn.usage for turn in self.turns)

    def with_turn(self, turn: Turn) -> SessionUsage:
        """One more."""
        return SessionUsage((*self.turns, turn))


class AskOptions(TypedDict, total=False):
    """How a question is answered.

    max_tokens: of the answer, 1024 by default. clock: what changes with every turn, such as the time: it stands right
    before the question, so that nothing before it is computed anew. prediction: what the answer is expected to be; it
    saves time where it is right and changes nothing where it is not. idempotency_key: as in `EditOptions`. The rest is
    sampling; temperature 0 is greedy.
    """

    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: Sequence[str]
    clock: str
    prediction: str | None
    idempotency_key: str


class EditOptions(TypedDict, total=False):
    """How an edit is applied in a session: what `agent_runtime.types.Options` has, and this.

    path: the file; without, those that the edit names. write: the merged files take their places, and the next question
    shows them. expected_sha256: of the file as the sender believes it to be. prediction: what the whole file is likely
    to be. idempotency_key: of a call that is sent again by another process; each call has one of its own otherwise.
    """

    path: str | None
    write: bool
    expected_sha256: str | None
    prediction: str | None
    idempotency_key: str
    format: FormatName | Literal["auto"]
    instruction: str
    mode: Mode
    policy: Policy
    min_certainty: Certainty | None
    temperature: float
    seed: int
    max_tokens: int | None
    draft: Draft
    scope: ScopeName
    decide: Decide
    reuse: ReuseName | None
    trace: bool


def begin_call(workspace: str | None, reuse: ReuseName | None, preamble: str | None) -> Call[str]:
    """A new session; its id."""
    body = {"workspace": workspace, "reuse": reuse, "preamble": preamble}
    return Call("POST", "/sessions", lambda answer: str(answer["id"]), _given(body))


def state_call(session_id: str) -> Call[SessionState]:
    """What it holds."""
    return Call("GET", path_of("sessions", session_id), values.state_from_json)


def end_call(session_id: str) -> Call[None]:
    """The session is no more."""
    return Call("DELETE", path_of("sessions", session_id), lambda _: None)


def read_call(
    session_id: str, paths: Iterable[str], texts: Mapping[str, str], forget: Iterable[str], *, with_text: bool
) -> Call[tuple[ReadFile, ...]]:
    """Files into the context, and out of it."""
    body = {"paths": [*paths], "texts": dict(texts), "forget": [*forget], "with_text": with_text}
    return Call("POST", path_of("sessions", session_id, "read"), values.read_from_json, body)


def ask_call(session_id: str, question: str, options: AskOptions, *, stream: bool) -> Call[Answer]:
    """A question; it has a key, so that it can be sent again without being asked twice."""
    body = {"question": question, **options, "stream": stream}
    key = body.pop("idempotency_key", None)
    if "stop" in options:
        body["stop"] = [*options["stop"]]
    return Call(
        "POST",
        path_of("sessions", session_id, "ask"),
        values.answer_from_json,
        _given(body),
        idempotency_key=str(key or uuid.uuid4()),
        works=True,
    )


def apply_call(session_id: str, edit: str, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
    """An edit; it has a key, as it counts in what the session has used even where nothing is written."""
    body = {"edit": edit, **options, "stream": stream}
    key = body.pop("idempotency_key", None)
    return Call(
        "POST",
        path_of("sessions", session_id, "apply"),
        result_from_json,
        _given(body),
        idempotency_key=str(key or uuid.uuid4()),
        works=True,
    )


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}
