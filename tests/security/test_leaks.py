"""What the service says and logs holds no path of its machine, no text that nobody asked for, and no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_runtime.telemetry import log as logs
from tests.security.guarded import Guarded, guarded

MARK = "xyzzy_in_the_file"
SENT = "plugh_in_the_edit"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("leaks") / "a-telling-name" / "root"
    root.mkdir(parents=True)
    (root / "a.py").write_text(f"{MARK} = 1\n")
    (root / "binary").write_bytes(b"\0\1\2")
    (root / "folder").mkdir()
    (root / "circle").symlink_to("circle")
    (root / "out").symlink_to("/etc/passwd")
    return root


@pytest.fixture(scope="module")
def service(root: Path) -> Iterator[Guarded]:
    with guarded(root.parent, root, {"all": ("acme", ("apply", "read", "admin"))}) as running:
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
    service: Guarded, root: Path, body: dict[str, object]
) -> None:
    response = service.ask("POST", "/apply", "all", json=body)
    assert 400 <= response.status_code < 500
    assert "a-telling-name" not in response.text.replace("../a-telling-name/root/a.py/x", "")
    assert str(root) not in response.text
    assert MARK not in response.text
    assert "Traceback" not in response.text
    assert "agent_runtime" not in response.text


def test_logs_hold_no_text_no_token_and_no_query(service: Guarded, root: Path) -> None:
    """Those of the whole process, at the finest level, over good and bad requests."""
    stream = io.StringIO()
    before = [(logger, logger.level) for logger in (logging.getLogger(), logging.getLogger("hunk"))]
    handlers = logging.getLogger().handlers[:]
    log = logs.configure("json", "debug", stream)
    try:
        edit = json.dumps({"old_string": f"{MARK} = 1", "new_string": f"{SENT} = 2"})
        token = service.tokens["all"]
        service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": edit, "instruction": SENT})
        service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": edit, "mode": "model"})
        service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": SENT, "mode": "deterministic"})
        service.ask("POST", "/apply", "all", json={"original": SENT, "edit": 1})
        service.ask("POST", "/apply", "all", content=f"{{{SENT}", headers={"content-type": "application/json"})
        service.ask("POST", f"/{SENT}?token={token}&text={SENT}", "all")
        service.ask("GET", f"/workspaces/default/files/a.py?token={token}", "all")
        service.ask("GET", "/workspaces", headers={"authorization": f"Bearer {token}x"})
        service.ask("GET", "/workspaces", headers={"x-request-id": f"{SENT}\t\x01"})
        messages = [{"role": "user", "content": SENT}]
        service.ask("POST", "/v1/chat/completions", "all", json={"model": "scripted", "messages": messages})
        service.ask("POST", "/apply", "all", json={"path": "a.py", "edit": edit, "write": True})
    finally:
        log.finish()
        for logger, level in before:
            logger.setLevel(level)
        logging.getLogger().handlers[:] = handlers
    said = stream.getvalue()
    assert said.count('"message"') >= 5, "nothing was logged"
    for secret in (MARK, SENT, token, token.split("_", 2)[2]):
        assert secret not in said
    assert (root / "a.py").read_text() == f"{SENT} = 2\n"
