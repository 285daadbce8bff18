"""The routes below /v1: docs/openai.md, the OpenAPI document, and tokens, scopes and quotas."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from agent_runtime.quotas import TenantLimits, TenantRateLimiter
from agent_runtime.server import problems
from agent_runtime.server.openai import requests, routes
from agent_runtime.server.openapi import CodeApplyAnswer, CompletionAnswer, ErrorAnswer, ModelList
from tests.agent_runtime.openai.scripted_chat import ChattingMerger
from tests.agent_runtime.openai.test_apply import FILE, SNIPPET, body
from tests.agent_runtime.serving import serving
from tests.security.guarded import guarded

DOC = (Path(__file__).resolve().parents[3] / "docs" / "openai.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", DOC))


@pytest.mark.parametrize(
    "name",
    [
        *requests.ChatBody.model_fields,
        *requests.CodeApplyBody.model_fields,
        *requests.ApplyOptions.model_fields,
        *requests.IGNORED_FIELDS,
        *requests.NEUTRAL_VALUES,
        *requests.IGNORED_MESSAGE_FIELDS,
        *routes.APPLY_MODELS,
        *routes.APPLY_PREFIXES,
        *problems.OPENAI_CODES.values(),
    ],
)
def test_the_name_is_documented(name: str) -> None:
    assert name in QUOTED


def test_the_example_merges_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(file = .*?)```", DOC, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("limits.py").write_text("limit = 10\nretries = 3\n\n\ndef area(r):\n    return 3 * r * r\n")
    with serving(ChattingMerger()) as url, OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        names = {"client": client}
        exec(
            code.replace('open("limits.py", newline="").read()', 'Path("limits.py").read_text()'), {"Path": Path}, names
        )
    assert names["merged"] == "limit = 10\nseconds = 5\nretries = 3\n\n\ndef area(r):\n    return 3 * r * r\n"


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


MORE = "more = 1\n"
HELLO: dict[str, Any] = {"model": "hunk", "messages": [{"role": "user", "content": "Say hello."}]}


def test_the_key_of_the_client_is_a_token_of_the_service(tmp_path: Path) -> None:
    merger = ChattingMerger(text=FILE + MORE)
    wanted: Any = {"alice": ("a", ("apply",)), "bob": ("b", ("apply",)), "reader": ("c", ("read",))}
    with guarded(tmp_path, wanted=wanted, merger=merger) as service:

        def client(key: str) -> OpenAI:
            return OpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0)

        with client("nobody's") as stranger, pytest.raises(openai.AuthenticationError) as unknown:
            stranger.models.list()
        with client(service.tokens["reader"]) as reader:
            assert [model.id for model in reader.models.list()] == ["scripted", "hunk"]
            with pytest.raises(openai.PermissionDeniedError) as forbidden:
                reader.chat.completions.create(**HELLO)
        for name in ("alice", "bob"):
            with client(service.tokens[name]) as known:
                known.chat.completions.create(**HELLO)
                known.chat.completions.create(
                    **body(FILE, f"# ... existing code ...\n{MORE}"), extra_body={"hunk": {"mode": "model"}}
                )
    assert unknown.value.code == "invalid_api_key"
    assert unknown.value.response.headers["www-authenticate"] == "Bearer"
    assert "'apply'" in str(forbidden.value)
    chats = [chat.salt for chat in merger.chatting.seen]
    edits = [edit.salt for edit in merger.seen]
    assert chats == edits, "a chat and an edit of a tenant share what was computed"
    assert len(set(chats)) == 2, "two tenants do not"
    assert "" not in chats


def test_a_tenant_over_its_rate_is_told_when_to_come_again() -> None:
    limited = TenantRateLimiter(TenantLimits(requests_per_minute=1))
    with (
        serving(ChattingMerger(), change=lambda service: replace(service, tenants=limited)) as url,
        OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        client.chat.completions.create(**HELLO)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**HELLO)
    assert caught.value.code == "rate_limit_exceeded"
    assert 30 < int(caught.value.response.headers["retry-after"]) <= 60
