"""What the OpenAPI document says of the answers to an apply."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Optional, get_type_hints

from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, create_model

from agent_runtime.errors import (
    BadFile,
    BadRequest,
    Busy,
    DeadlinePassed,
    EditRefused,
    FileMissing,
    KeyReused,
    ModelFailed,
    ModelUnavailable,
    OutsideRoot,
    Stale,
    TooLarge,
    TooManyRequests,
    Unsupported,
    WorkspaceMissing,
)
from agent_runtime.http.openapi import Responses, problems
from agent_runtime.types import FileResult, Status, Usage

_hints = get_type_hints(FileResult)
_ONLY_FILE: dict[str, Any] = {
    each.name: (Optional[_hints[each.name]], Field(None, description="Of the only file."))  # noqa: UP045 -- made of a value
    for each in fields(FileResult)
    if each.name != "status"
}


class _ApplyAnswer(BaseModel):
    """What became of the files. With a single file, its entry's fields stand here, too."""

    status: Status
    written: bool = Field(description="Whether the merged files have been put in their places.")
    files: list[FileResult]
    usage: Usage
    timings: dict[str, float] = Field(description="Milliseconds by phase.")
    trace: list[dict[str, Any]] | None = Field(description="An entry for each question to the model, where asked for.")
    sha256: str | None = Field(None, description="Of the only file after the edit.")


ApplyAnswer = create_model("ApplyAnswer", __base__=_ApplyAnswer, __doc__=_ApplyAnswer.__doc__, **_ONLY_FILE)


class NdJson(StreamingResponse):
    """JSON, an object a line."""

    media_type = "application/x-ndjson"


def apply_responses() -> Responses:
    """Of `POST /apply`."""
    events = [("phase", {"phase": "merge"}), ("tokens", _TOKENS), ("result", {"status": "merged", "...": "..."})]
    stream = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
    return {
        200: {
            "description": "What the edit came to: merged, rejected by a check, or nothing to do. With `stream`: the "
            "events `phase` and `tokens`, comments while nothing happens, and at the end `result` or `problem`.",
            "model": ApplyAnswer,
            "content": {
                "text/event-stream": {"schema": {"type": "string"}, "example": stream},
            },
        },
        **_FAULTS,
    }


def batch_responses() -> Responses:
    """Of `POST /apply/batch`."""
    line = {"id": "first", "index": 0, "status": 200, "result": {"status": "merged", "...": "..."}}
    return {
        200: {
            "description": "A line for each request as it finishes: `id` as it was sent, `index` in the batch, the "
            "`status` that a request of its own would have had, and `result` or `problem`.",
            "content": {NdJson.media_type: {"schema": {"type": "string"}, "example": json.dumps(line) + "\n"}},
        },
        **problems(BadRequest, TooLarge, TooManyRequests, Unsupported),
    }


_TOKENS = {"region": 0, "pieces": [{"text": "def", "origin": "copied"}, {"text": " add", "origin": "generated"}]}

_FAULTS = problems(
    BadRequest,
    OutsideRoot,
    FileMissing,
    WorkspaceMissing,
    Stale,
    TooLarge,
    EditRefused,
    Unsupported,
    BadFile,
    KeyReused,
    Busy,
    ModelFailed,
    ModelUnavailable,
    DeadlinePassed,
)
