"""schemathesis sends what the OpenAPI document allows and what it does not: no fault of ours, no answer undescribed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.environments import program
from tests.e2e.service import HUNK, scripted

pytestmark = pytest.mark.e2e

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)


@pytest.fixture
def token(tmp_path: Path) -> str:
    """A token for everything, in the file `tokens.json`."""
    command = [HUNK, "token", "new", "schemathesis", "--scope", "admin", "--file", tmp_path / "tokens.json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_every_route_answers_as_it_says_whatever_it_is_sent(token: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.py").write_text("a = 1\nb = 2\n")
    options = ("--context", "2048", "--tokens", tmp_path / "tokens.json")
    with scripted(root, tmp_path / "script.json", arguments=options) as service:
        command = [program("schemathesis", "st"), "run", f"{service.url}/openapi.json", "--checks", ",".join(CHECKS)]
        command += ["--header", f"Authorization: Bearer {token}"]
        command += ["--phases", "examples,coverage,fuzzing", "--mode", "all", "--max-examples", "10", "--seed", "1"]
        command += ["--request-timeout", "120", "--suppress-health-check", "all", "--no-color"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert "Tested: 0" not in done.stdout
        assert service.process.poll() is None, "\n".join(service.said[-20:])
