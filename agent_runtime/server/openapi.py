"""The OpenAPI document: the schemas of answers, and the problems and examples of every route."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NoReturn, Optional, get_type_hints

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, create_model

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import (
    BadFile,
    BadRequest,
    Busy,
    DeadlinePassed,
    EditRefused,
    FileMissing,
    HunkError,
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
from agent_runtime.serialization import problem_to_json, result_to_json
from agent_runtime.server.problems import PROBLEM_MEDIA
from agent_runtime.server.schemas import EXAMPLES as SENT
from agent_runtime.types import ApplyRequest, FileResult, Reason, Status, Usage


@cache
def load_examples() -> dict[str, Any]:
    """Load the example answers, by method and path."""
    merged = _run_example()
    others = json.loads(files(__package__).joinpath("examples.json").read_text(encoding="utf-8"))
    return {"POST /apply": merged, "POST /sessions/{session_id}/apply": merged, **others}


def _run_example() -> dict[str, Any]:
    """Return the service's answer to the first example of a request."""

    def no_model() -> NoReturn:
        raise ModelUnavailable("no rule merges the example")

    sent = SENT[0]
    result = Applier(no_model).apply(ApplyRequest(sent["original"].encode(), sent["edit"], sent["path"]))
    answer: dict[str, Any] = json.loads(json.dumps(result_to_json(result)))
    return answer


Responses = dict[int | str, dict[str, Any]]
"""The argument `responses` of a route, by status."""

REF = "#/components/schemas/{model}"


class Problem(BaseModel):
    """RFC 9457 problem details; docs/api.md says what each `type` means and what to do."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(pattern="^urn:hunk:problem:[a-z0-9-]+$")
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    field: str | None = Field(None, description="The field of the request that is wrong.")
    reasons: list[Reason] | None = Field(None, description="Why the edit is refused: an entry for each file.")
    current_sha256: str | None = Field(None, description="Hash of the file as it is now.")
    retry_after_s: float | None = Field(None, description="Seconds after which to try again.")


def describe_problems(*faults: type[HunkError]) -> Responses:
    """Describe the problems with which a route may answer."""
    answers: Responses = {}
    for fault in faults:
        answer = answers.setdefault(fault.http_status, _describe_answer())
        example = problem_to_json(_make_sample(fault))
        kinds = answer["content"][PROBLEM_MEDIA]["examples"]
        kinds[fault.kind] = {"summary": example["title"], "value": example}
        answer["description"] = " · ".join(f"`{kind}`: {one['summary']}" for kind, one in kinds.items())
    return answers


def _describe_answer(description: str = "") -> dict[str, Any]:
    schema = {"$ref": REF.format(model="Problem")}
    return {"description": description, "content": {PROBLEM_MEDIA: {"schema": schema, "examples": {}}}}


def _make_sample(fault: type[HunkError]) -> HunkError:
    """Make an error of a class, as an example with all its fields."""
    detail = (fault.__doc__ or "").split("\n")[0]
    return fault(detail, current_sha256="0" * 64) if issubclass(fault, Stale) else fault(detail)


ANY_PROBLEM: Responses = {
    "4XX": _describe_answer("The request is refused."),
    "5XX": _describe_answer("The service failed or is not available."),
}
"""Problems of every route, in addition to those that it lists."""


def _add_examples(paths: dict[str, Any]) -> None:
    """Add the examples to the answers in JSON that have none."""
    for route, example in load_examples().items():
        method, path = route.split(" ")
        for status, answer in paths.get(path, {}).get(method.lower(), {}).get("responses", {}).items():
            if status.startswith("2") and "application/json" in answer.get("content", {}):
                answer["content"]["application/json"].setdefault("example", example)


PUBLISHED_NAMES = {"BatchRequest": "BatchItem", "SessionAnswer": "Answer"}
"""Published names of schemas whose class has another name: clients are generated from these names."""


class DescribedApp(FastAPI):
    """An application whose OpenAPI document describes the problems of each route."""

    def openapi(self) -> dict[str, Any]:
        """Return the document, which is built once."""
        if self.openapi_schema is None:
            document = super().openapi()
            _add_examples(document["paths"])
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            problem = Problem.model_json_schema(ref_template=REF)
            for name, schema in problem.pop("$defs", {}).items():
                schemas.setdefault(name, schema)
            schemas["Problem"] = problem
            text = json.dumps(document)
            for name, published in PUBLISHED_NAMES.items():
                text = re.sub(rf'(["/]){name}"', rf'\1{published}"', text)
            self.openapi_schema = json.loads(text)
        return self.openapi_schema


_hints = get_type_hints(FileResult)
_ONLY_FILE: dict[str, Any] = {
    each.name: (Optional[_hints[each.name]], Field(None, description="Field of the only file."))  # noqa: UP045 -- made of a value
    for each in fields(FileResult)
    if each.name != "status"
}


class _ApplyAnswer(BaseModel):
    """The outcome of an edit. If it has a single file, that file's fields are here too."""

    status: Status
    written: bool = Field(description="Whether the merged files are written.")
    write_id: str = Field(description="Undoes that with `POST /undo`; empty if nothing was kept.")
    files: list[FileResult]
    usage: Usage
    timings: dict[str, float] = Field(description="Milliseconds by phase.")
    trace: list[dict[str, Any]] | None = Field(description="An entry for each question to the model, if requested.")
    sha256: str | None = Field(None, description="Hash of the only file after the edit.")


ApplyAnswer = create_model("ApplyAnswer", __base__=_ApplyAnswer, __doc__=_ApplyAnswer.__doc__, **_ONLY_FILE)


class NdJson(StreamingResponse):
    """A stream of JSON, one object per line."""

    media_type = "application/x-ndjson"


def describe_apply() -> Responses:
    """Describe the answers of `POST /apply`."""
    events = [("phase", {"phase": "merge"}), ("tokens", _TOKENS), ("result", {"status": "merged", "...": "..."})]
    stream = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
    return {
        200: {
            "description": "The outcome of the edit: merged, rejected by a check, or nothing to do. With `stream`: the "
            "events `phase` and `tokens`, comments in between, and at the end `result` or `problem`.",
            "model": ApplyAnswer,
            "content": {
                "text/event-stream": {"schema": {"type": "string"}, "example": stream},
            },
        },
        **_FAULTS,
    }


def describe_batch() -> Responses:
    """Describe the answers of `POST /apply/batch`."""
    line = {"id": "first", "index": 0, "status": 200, "result": {"status": "merged", "...": "..."}}
    return {
        200: {
            "description": "A line for each request as it finishes: the `id` that was sent, the `index` in the batch, "
            "the `status` that `POST /apply` would answer, and `result` or `problem`.",
            "content": {NdJson.media_type: {"schema": {"type": "string"}, "example": json.dumps(line) + "\n"}},
        },
        **describe_problems(BadRequest, TooLarge, TooManyRequests, Unsupported),
    }


_TOKENS = {"region": 0, "pieces": [{"text": "def", "origin": "copied"}, {"text": " add", "origin": "generated"}]}

_FAULTS = describe_problems(
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


class ErrorObject(BaseModel):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None = Field(description="The field of the request that is wrong.")
    code: str | None
    hunk: dict[str, Any] | None = Field(None, description="Fields that OpenAI does not have, such as `reasons`.")


class ErrorAnswer(BaseModel):
    """The answer to a request that failed."""

    error: ErrorObject


class AnswerMessage(BaseModel):
    """The message of the answer."""

    role: Literal["assistant"]
    content: str
    refusal: None


class Choice(BaseModel):
    """The only choice of an answer."""

    index: Literal[0]
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class PromptDetails(BaseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int = Field(description="Tokens whose exact KV was cached.")


class CompletionDetails(BaseModel):
    """Drafted tokens of a prediction."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class TokenUsage(BaseModel):
    """Tokens as OpenAI counts them; all 0 where a rule merged an edit."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class CompletionAnswer(BaseModel):
    """The answer to a chat, or a merged file."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice] = Field(min_length=1, max_length=1)
    usage: TokenUsage
    hunk: dict[str, Any] = Field(
        description="`usage` and `timings` as in `POST /apply`; for an edit also `status`, `method`, `rung`, "
        "`candidates`, `certainty`, `confidence`, `checks`, `diff` and the file's hashes."
    )


class CodeApplyAnswer(BaseModel):
    """A merged file."""

    mergedCode: str = Field(description="The whole merged file.")  # noqa: N815 -- the name that hosted services gave it
    usage: TokenUsage
    hunk: dict[str, Any] = Field(description="As in a chat completion that merges an edit.")


class ModelObject(BaseModel):
    """A name of the service's model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All names of the service's model."""

    object: Literal["list"]
    data: list[ModelObject]


FAULTS: Responses = {
    "4XX": {"description": "The request is refused; docs/openai.md has the codes.", "model": ErrorAnswer},
    "5XX": {"description": "The service failed or is not available.", "model": ErrorAnswer},
}
"""Errors of every route below /v1."""

COMPLETION: Responses = {
    200: {
        "description": "The answer; with `stream` its chunks, and comments in between.",
        "model": CompletionAnswer,
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
