"""What the OpenAPI document says of the answers below /v1."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from agent_runtime.http.openapi import Responses


class ErrorObject(BaseModel):
    """What is wrong, as OpenAI says it."""

    message: str
    type: str
    param: str | None = Field(description="The field of the request that is wrong.")
    code: str | None
    hunk: dict[str, Any] | None = Field(None, description="What OpenAI has no place for, such as `reasons`.")


class ErrorAnswer(BaseModel):
    """A request that is refused, or could not be done."""

    error: ErrorObject


class AnswerMessage(BaseModel):
    """What is answered."""

    role: Literal["assistant"]
    content: str
    refusal: None


class Choice(BaseModel):
    """The only answer."""

    index: Literal[0]
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class PromptDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int = Field(description="Whose KV was there, exactly.")


class CompletionDetails(BaseModel):
    """Of a prediction's tokens, those that were put before the model."""

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
    """A chat's answer, or a merged file."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice] = Field(min_length=1, max_length=1)
    usage: TokenUsage
    hunk: dict[str, Any] = Field(
        description="`usage` and `timings` as `POST /apply` has them; of an edit `status`, `method`, `rung`, "
        "`candidates`, `certainty`, `confidence`, `checks`, `diff` and the file's hashes."
    )


class CodeApplyAnswer(BaseModel):
    """A merged file."""

    mergedCode: str = Field(description="The whole file.")  # noqa: N815 -- the name that hosted services gave it
    hunk: dict[str, Any] = Field(description="As of a chat completion that merges an edit.")


class ModelObject(BaseModel):
    """A name under which the service's model may be asked."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"]
    data: list[ModelObject]


FAULTS: Responses = {
    "4XX": {"description": "The request is refused; docs/openai.md has the codes.", "model": ErrorAnswer},
    "5XX": {"description": "The service cannot do it, or not now.", "model": ErrorAnswer},
}
"""Of every route below /v1."""

COMPLETION: Responses = {
    200: {
        "description": "The answer; with `stream` its chunks, and comments while nothing comes.",
        "model": CompletionAnswer,
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
