"""The OpenAPI document says what the routes below /v1 answer, their faults in OpenAI's shape too."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agent_runtime.server.openapi import CodeApplyAnswer, CompletionAnswer, ErrorAnswer, ModelList
from tests.agent_runtime.openai.scripted_chat import ChattingMerger
from tests.agent_runtime.openai.test_apply import FILE, SNIPPET, body
from tests.agent_runtime.serving import serving


def test_the_answers_are_as_they_are_documented() -> None:
    chat = {"messages": [{"role": "user", "content": "Say hello."}]}
    with serving(ChattingMerger()) as url:
        for sent in (chat, body(FILE, SNIPPET)):
            CompletionAnswer.model_validate(httpx.post(f"{url}/v1/chat/completions", json=sent).json(), strict=True)
        sent = {"initial_code": FILE, "edit_snippet": SNIPPET}
        CodeApplyAnswer.model_validate(httpx.post(f"{url}/v1/code/apply", json=sent).json(), strict=True)
        ModelList.model_validate(httpx.get(f"{url}/v1/models").json(), strict=True)
        ErrorAnswer.model_validate(httpx.get(f"{url}/v1/models/gpt-9").json(), strict=True)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    with serving(ChattingMerger()) as url:
        found: dict[str, Any] = httpx.get(f"{url}/openapi.json").json()
        return found


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "/v1/chat/completions"),
        ("post", "/v1/code/apply"),
        ("get", "/v1/models"),
        ("get", "/v1/models/{name}"),
    ],
)
def test_a_fault_is_documented_in_openais_shape(document: dict[str, Any], method: str, path: str) -> None:
    responses = document["paths"][path][method]["responses"]
    assert set(responses) == {"200", "4XX", "5XX"}
    for kind in ("4XX", "5XX"):
        (media,) = responses[kind]["content"]
        assert media == "application/json"
        assert responses[kind]["content"][media]["schema"]["$ref"].endswith("/ErrorAnswer")
