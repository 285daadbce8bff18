"""What one tenant has is nothing to another: what the model computed, workspaces, sessions, kept answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.prompt import PromptForm
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from tests.models import RealModel
from tests.security.guarded import Guarded, guarded

FILE = "".join(f"def number_{number}():\n    return {number}\n\n\n" for number in range(12))
EDIT = '{"old_string": "return 7", "new_string": "return 8"}'


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, smollm2: RealModel, smollm2_decoder: Decoder
) -> Iterator[Guarded]:
    """A real model, small and quick, and two tenants, each with a folder below the one that is served."""
    folder = tmp_path_factory.mktemp("tenants")
    for name in ("ann", "bob"):
        (folder / name).mkdir()
        (folder / name / "a.py").write_text(FILE)
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    form = PromptForm("plain", "You merge edits into code.", ())
    text = replace(metadata.to_bundle(tokenizer), form=form)
    config = EngineConfig(2048, span_bytes=50_000_000)
    scopes = ("apply", "read", "admin")
    with Engine(smollm2_decoder, text.tokenizer.token_bytes(), config) as engine:
        merger = ModelMerger(LoadedModel("smollm2-135m", engine, text, 0.0, 0))
        names = [f"{name}{number}" for name in ("ann", "bob") for number in ("", 1, 2, 3, 4)]
        wanted: dict[str, Any] = {name: (name, scopes) for name in names}
        wanted |= {f"{name}-too": (name, scopes) for name in names}
        with guarded(folder, None, wanted, merger) as running:
            yield running


def apply_usage(service: Guarded, token: str, reuse: str) -> tuple[int, int]:
    body = {"original": FILE, "edit": EDIT, "mode": "model", "scope": "file", "max_tokens": 2, "policy": "lenient"}
    answer = service.ask("POST", "/apply", token, json=body | {"reuse": reuse}).json()
    return answer["usage"]["cached"], answer["usage"]["reused_approximate"]


def chat_usage(service: Guarded, token: str, reuse: str) -> tuple[int, int]:
    messages = [{"role": "user", "content": f"Read this:\n{FILE}\nWhat is number_7?"}]
    body = {"model": "scripted", "messages": messages, "max_tokens": 2}
    answer = service.ask("POST", "/v1/chat/completions", token, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0


@pytest.mark.parametrize(
    ("number", "usage", "reuse"), [(1, apply_usage, "exact"), (2, apply_usage, "fast"), (3, chat_usage, "exact")]
)
def test_the_cache_tells_no_tenant_what_another_asked(service: Guarded, number: int, usage: Any, reuse: str) -> None:
    """The same prompt again is cached for whoever sent it, under any of its tokens, and new to everybody else."""
    ann, bob = f"ann{number}", f"bob{number}"
    assert usage(service, ann, reuse) == (0, 0)
    assert usage(service, f"{ann}-too", reuse)[0] > 100
    assert usage(service, bob, reuse) == (0, 0)
    assert usage(service, bob, reuse)[0] > 100


def test_a_file_that_changed_is_taken_over_from_no_other_tenant(service: Guarded) -> None:
    """Behind a change, too: spans wherever they stand."""

    def reused(token: str, text: str) -> int:
        body = {"original": text, "edit": EDIT, "mode": "model", "scope": "file", "max_tokens": 2, "reuse": "turbo"}
        answer = service.ask("POST", "/apply", token, json=body | {"policy": "lenient"}).json()
        return int(answer["usage"]["reused_approximate"])

    base = FILE.replace("number_", "digit_")
    reused("ann4", base)
    changed = base.replace("return 0", "return 1000")
    assert reused("bob4", changed) == 0
    assert reused("ann4", changed) > 50


def test_workspaces_are_a_tenants_own(service: Guarded) -> None:
    folder = service.file.path.parent
    made = service.ask("POST", "/workspaces", "ann", json={"root": str(folder / "ann"), "name": "mine"})
    assert made.status_code in (200, 201), made.text
    assert service.ask("GET", "/workspaces/mine/files/a.py", "ann").status_code == 200
    for method, path in (
        ("GET", "/workspaces/mine"),
        ("GET", "/workspaces/mine/files"),
        ("GET", "/workspaces/mine/files/a.py"),
        ("GET", "/workspaces/mine/snapshot"),
        ("DELETE", "/workspaces/mine"),
    ):
        there, nowhere = (service.ask(method, path.replace("mine", name), "bob") for name in ("mine", "none"))
        assert there.status_code == nowhere.status_code == 404
        assert there.json()["detail"].replace("mine", "none") == nowhere.json()["detail"]
    assert "mine" not in service.ask("GET", "/workspaces", "bob").text
    edit = {"path": "a.py", "edit": EDIT, "workspace": "mine", "write": True}
    assert service.ask("POST", "/apply", "bob", json=edit).status_code == 404
    taken = service.ask("POST", "/workspaces", "bob", json={"root": str(folder / "ann")})
    assert taken.status_code in (403, 409)
    assert str(folder / "bob") not in taken.text


def test_sessions_are_a_tenants_own(service: Guarded) -> None:
    begun = service.ask("POST", "/sessions", "ann", json={})
    assert begun.status_code in (200, 201), begun.text
    session = begun.json()["id"]
    assert service.ask("GET", f"/sessions/{session}", "ann-too").status_code == 200
    for method, path, body in (
        ("GET", f"/sessions/{session}", None),
        ("DELETE", f"/sessions/{session}", None),
        ("POST", f"/sessions/{session}/ask", {"question": "what?"}),
        ("POST", f"/sessions/{session}/apply", {"path": "a.py", "edit": EDIT}),
        ("POST", f"/sessions/{session}/read", {"paths": ["a.py"]}),
    ):
        assert service.ask(method, path, "bob", json=body).status_code == 404, path
    assert service.ask("GET", f"/sessions/{session}", "ann").status_code == 200


def test_a_kept_answer_is_given_to_its_tenant_only(service: Guarded) -> None:
    headers = {"idempotency-key": "the-same"}
    body = {"original": "a = 1\n", "edit": '{"old_string": "a = 1", "new_string": "a = 2"}'}
    other = body | {"original": "a = 1  # other\n"}
    assert service.ask("POST", "/apply", "ann", json=body, headers=headers).status_code == 200
    assert service.ask("POST", "/apply", "ann", json=other, headers=headers).status_code == 422
    mine = service.ask("POST", "/apply", "bob", json=other, headers=headers)
    assert mine.status_code == 200
    assert "idempotent-replayed" not in mine.headers


def test_a_salt_cannot_be_sent(service: Guarded) -> None:
    body = {"original": FILE, "edit": EDIT, "salt": "x"}
    assert service.ask("POST", "/apply", "bob", json=body).status_code == 422
