"""Tokens, scopes and quotas below /v1, as the `openai` package sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from agent_runtime.quotas import TenantLimits, TenantRateLimiter
from tests.agent_runtime.openai.scripted_chat import ChattingMerger
from tests.agent_runtime.openai.test_apply import FILE, body
from tests.agent_runtime.serving import serving
from tests.security.guarded import guarded

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
