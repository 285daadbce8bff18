"""`hunk token`, and `hunk serve` with its tokens."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_runtime.cli.serve import check_loopback
from agent_runtime.errors import BadRequest, TokensUnreadable
from agent_runtime.server.token_file import TokenFile, make_token
from tests.agent_runtime.cli.test_cli import HUNK
from tests.agent_runtime.in_process import hunk_here


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUNK_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    return tmp_path / "tokens.json"


def test_a_token_is_shown_once_and_known_from_then_on(file: Path) -> None:
    made = hunk_here("token", "new", "ann", "--scope", "read", "--tenant", "acme", "--days", "2")
    assert made.exit_code == 0
    text = made.stdout.strip()
    now = datetime.now(UTC)
    principal = TokenFile(file).read().find_principal(text, now)
    assert (principal.tenant, principal.scopes) == ("acme", {"read"})
    assert f"--tokens {file}" in made.stderr
    listed = hunk_here("token", "list", "--json").stdout
    (row,) = json.loads(listed)["tokens"]
    assert (row["name"], row["tenant"], row["scopes"]) == ("ann", "acme", ["read"])
    assert 1.9 < (datetime.fromisoformat(row["expires"]) - now).total_seconds() / 86400 < 2.1
    assert text.split("_", 2)[2] not in listed + file.read_text()


def test_a_token_may_apply_and_read_where_nothing_is_said(file: Path) -> None:
    made = json.loads(hunk_here("token", "new", "ann", "--json").stdout)
    assert (made["tenant"], made["scopes"], made["expires"]) == ("ann", ["apply", "read"], None)
    assert "ann" in hunk_here("token", "list").stdout
    assert TokenFile(file).read().find_token("ann") is not None


def test_a_revoked_token_is_gone(file: Path) -> None:
    text = hunk_here("token", "new", "ann").stdout
    hunk_here("token", "new", "bob")
    assert json.loads(hunk_here("token", "revoke", text.split("_")[1], "--json").stdout)["revoked"]["name"] == "ann"
    assert [token.name for token in TokenFile(file).read().tokens] == ["bob"]
    assert isinstance(hunk_here("token", "revoke", "ann").exception, BadRequest)


def test_what_cannot_be_done_is_said(file: Path) -> None:
    assert isinstance(hunk_here("token", "list").exception, TokensUnreadable)
    hunk_here("token", "new", "ann")
    for arguments in (["ann"], ["a b"], [""], ["-"], ["x" * 65], ["bob", "--tenant", "a/b"]):
        assert hunk_here("token", "new", *arguments).exit_code != 0, arguments
    assert isinstance(hunk_here("token", "new", "bob", "--scope", "root").exception, BadRequest)
    assert len(TokenFile(file).read().tokens) == 1


def test_tokens_that_are_made_at_once_are_all_kept(file: Path) -> None:
    def add(number: int) -> None:
        token, _ = make_token(f"n{number}", "acme", frozenset(), datetime.now(UTC))
        TokenFile(file).change(lambda known: known.add_token(token))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(TokenFile(file).read().tokens) == 8


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "::ffff:192.0.2.1"])
def test_others_are_not_let_in_without_a_token(host: str) -> None:
    with pytest.raises(BadRequest, match="hunk token new"):
        check_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "no-such-host.invalid"])
def test_this_machine_is(host: str) -> None:
    check_loopback(host)


def test_serve_refuses_to_listen_wider_without_tokens_and_with_a_file_that_is_none(tmp_path: Path) -> None:
    environ = os.environ | {"HUNK_CONFIG": ""}
    for arguments, said in (
        (["--host", "0.0.0.0"], "hunk token new"),
        (["--host", "0.0.0.0", "--tokens", str(tmp_path / "none.json")], "No such file"),
    ):
        done = subprocess.run(
            [HUNK, "serve", "--port", "0", *arguments], capture_output=True, text=True, check=False, env=environ
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
