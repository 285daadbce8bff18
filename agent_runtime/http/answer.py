"""What one request comes to, whatever it is sent as: a response, an event of a stream, a line of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import Response
from pydantic_core import to_json

from agent_runtime.errors import HunkError
from agent_runtime.http.problems import PROBLEM_MEDIA, headers_of
from agent_runtime.shapes import problem_of, result_to_json
from agent_runtime.types import ApplyResult

PASSING = frozenset({429, 499})
"""Refusals that say nothing about the request: the same one may be answered a little later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and the JSON that goes with it: a result, or a problem from 400 on."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_problem(self) -> bool:
        """Whether the request has failed."""
        return self.status >= 400

    @property
    def is_final(self) -> bool:
        """Whether the same request would be answered so again, as far as it lies with the request."""
        return self.status < 500 and self.status not in PASSING

    def response(self) -> Response:
        """As the answer to an HTTP request of its own."""
        media = PROBLEM_MEDIA if self.is_problem else "application/json"
        return Response(self.content, self.status, dict(self.headers), media_type=media)


def answer_of(result: ApplyResult) -> Answer:
    """The answer to an apply that has a result."""
    return Answer(200, to_json(result_to_json(result)))


def answer_of_fault(fault: HunkError) -> Answer:
    """The answer to a request that has failed."""
    content = json.dumps(problem_of(fault))  # in ASCII: what was sent may hold a lone surrogate, and is quoted
    return Answer(fault.http_status, content.encode(), headers_of(fault))
