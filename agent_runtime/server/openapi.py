"""The OpenAPI document: every route with the problems that it answers, in one shape."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from agent_runtime.errors import HunkError, Stale
from agent_runtime.http.examples import examples
from agent_runtime.http.problems import PROBLEM_MEDIA
from agent_runtime.shapes import problem_of
from agent_runtime.types import Reason

Responses = dict[int | str, dict[str, Any]]
"""What FastAPI takes as `responses`, by status."""

REF = "#/components/schemas/{model}"


class Problem(BaseModel):
    """RFC 9457 problem details; docs/api.md says what each `type` means and what to do."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(pattern="^urn:hunk:problem:[a-z0-9-]+$")
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    field: str | None = Field(None, description="The field of the request that is wrong.")
    reasons: list[Reason] | None = Field(None, description="Why the edit is refused, an entry for each file.")
    current_sha256: str | None = Field(None, description="Of the file as it is now.")
    retry_after_s: float | None = Field(None, description="Seconds until it is worth another try.")


def problems(*faults: type[HunkError]) -> Responses:
    """The answers of a route that may fail with these faults."""
    answers: Responses = {}
    for fault in faults:
        answer = answers.setdefault(fault.http_status, _answer())
        example = problem_of(_sample(fault))
        kinds = answer["content"][PROBLEM_MEDIA]["examples"]
        kinds[fault.kind] = {"summary": example["title"], "value": example}
        answer["description"] = " · ".join(f"`{kind}`: {one['summary']}" for kind, one in kinds.items())
    return answers


def _answer(description: str = "") -> dict[str, Any]:
    schema = {"$ref": REF.format(model="Problem")}
    return {"description": description, "content": {PROBLEM_MEDIA: {"schema": schema, "examples": {}}}}


def _sample(fault: type[HunkError]) -> HunkError:
    """One of its kind: what it says beside its detail is of interest."""
    detail = (fault.__doc__ or "").split("\n")[0]
    return fault(detail, current_sha256="0" * 64) if issubclass(fault, Stale) else fault(detail)


ANY_PROBLEM: Responses = {
    "4XX": _answer("The request is refused."),
    "5XX": _answer("The service cannot do it, or not now."),
}
"""Of every route, beside those that it names."""


def _add_examples(paths: dict[str, Any]) -> None:
    """To the answers in JSON that have none."""
    for route, example in examples().items():
        method, path = route.split(" ")
        for status, answer in paths.get(path, {}).get(method.lower(), {}).get("responses", {}).items():
            if status.startswith("2") and "application/json" in answer.get("content", {}):
                answer["content"]["application/json"].setdefault("example", example)


class DescribedApp(FastAPI):
    """An application whose OpenAPI document knows what a problem is."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "Problem" not in schemas:
            _add_examples(document["paths"])
            problem = Problem.model_json_schema(ref_template=REF)
            for name, schema in problem.pop("$defs", {}).items():
                schemas.setdefault(name, schema)
            schemas["Problem"] = problem
        return document
