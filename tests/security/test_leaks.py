"""What the service tells whom: no paths and no secrets to anybody, and nothing of one tenant to another."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.prompt.forms import PromptForm
from agent_runtime.telemetry import log as logs
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from tests.models import RealModel
from tests.security.guarded import Guarded, guarded

# Answers and logs hold no path of the machine, no text that nobody asked for, and no secret.


MARK = "xyzzy_in_the_file"
SENT = "plugh_in_the_edit"


@pytest.fixture(scope="module")
def private_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    private_root = tmp_path_factory.mktemp("leaks") / "a-telling-name" / "root"
    private_root.mkdir(parents=True)
    (private_root / "a.py").write_text(f"{MARK} = 1\n")
    (private_root / "binary").write_bytes(b"\0\1\2")
    (private_root / "folder").mkdir()
    (private_root / "circle").symlink_to("circle")
    (private_root / "out").symlink_to("/etc/passwd")
    return private_root


@pytest.fixture(scope="module")
def private_service(private_root: Path) -> Iterator[Guarded]:
    with guarded(private_root.parent, private_root, {"all": ("acme", ("apply", "read", "admin"))}) as running:
        yield running


BODIES = [
    {"path": "missing.py", "edit": "x"},
    {"path": "folder", "edit": "x"},
    {"path": "binary", "edit": "x"},
    {"path": "circle", "edit": "x"},
    {"path": "out", "edit": "x"},
    {"path": "/etc/passwd", "edit": "x"},
    {"path": "../a-telling-name/root/a.py/x", "edit": "x"},
    {"path": "a.py/x", "edit": "x"},
    {"path": "x" * 5000, "edit": "x"},
    {"path": "a.py", "edit": "x", "expected_sha256": "0" * 64, "write": True},
    {"path": "a.py", "edit": "x", "workspace": "none"},
    {"edit": "*** Begin Patch\n*** Add File: a.py/b\n+x\n*** End Patch\n", "write": True},
    {"edit": "*** Begin Patch\n*** Add File: folder\n+x\n*** End Patch\n", "write": True},
    {"edit": "*** Begin Patch\n*** Add File: circle/x\n+x\n*** End Patch\n", "write": True},
    {"edit": 1},
    {},
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_no_fault_tells_where_the_root_lies_or_what_a_file_holds(
    private_service: Guarded, private_root: Path, body: dict[str, object]
) -> None:
    response = private_service.ask("POST", "/apply", "all", json=body)
    assert 400 <= response.status_code < 500
    assert "a-telling-name" not in response.text.replace("../a-telling-name/root/a.py/x", "")
    assert str(private_root) not in response.text
    assert MARK not in response.text
    assert "Traceback" not in response.text
    assert "agent_runtime" not in response.text


def test_logs_hold_no_text_no_token_and_no_query(private_service: Guarded, private_root: Path) -> None:
    """Those of the whole process, at the finest level, over good and bad requests."""
    stream = io.StringIO()
    before = [(logger, logger.level) for logger in (logging.getLogger(), logging.getLogger("hunk"))]
    handlers = logging.getLogger().handlers[:]
    log = logs.configure_logging("json", "debug", stream)
    try:
        edit = json.dumps({"old_string": f"{MARK} = 1", "new_string": f"{SENT} = 2"})
        token = private_service.tokens["all"]
        private_service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": edit, "instruction": SENT})
        private_service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": edit, "mode": "model"})
        private_service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": SENT, "mode": "deterministic"})
        private_service.ask("POST", "/apply", "all", json={"original": SENT, "edit": 1})
        private_service.ask("POST", "/apply", "all", content=f"{{{SENT}", headers={"content-type": "application/json"})
        private_service.ask("POST", f"/{SENT}?token={token}&text={SENT}", "all")
        private_service.ask("GET", f"/workspaces/default/files/a.py?token={token}", "all")
        private_service.ask("GET", "/workspaces", headers={"authorization": f"Bearer {token}x"})
        private_service.ask("GET", "/workspaces", headers={"x-request-id": f"{SENT}\t\x01"})
        messages = [{"role": "user", "content": SENT}]
        private_service.ask("POST", "/v1/chat/completions", "all", json={"model": "scripted", "messages": messages})
        private_service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": edit, "write": True})
    finally:
        log.finish()
        for logger, level in before:
            logger.setLevel(level)
        logging.getLogger().handlers[:] = handlers
    said = stream.getvalue()
    assert said.count('"message"') >= 5, "nothing was logged"
    for secret in (MARK, SENT, token, token.split("_", 2)[2]):
        assert secret not in said
    assert (private_root / "a.py").read_text() == f"{SENT} = 2\n"


# Tenants: what the model computed, workspaces, sessions, kept answers.


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
