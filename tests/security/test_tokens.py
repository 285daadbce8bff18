"""Who may use the service: tokens, their file, their scopes, and how wrong ones are refused."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from agent_runtime.errors import TokensUnreadable, Unauthorized
from agent_runtime.local_services import RunningService, list_services
from agent_runtime.server import auth as throttling
from agent_runtime.server.auth import BURST, MAX_ADDRESSES, REFILL_SECONDS, Throttle
from agent_runtime.server.token_file import AccessToken, LiveTokens, TokenFile, TokenSet, hash_token, make_token
from tests.security.guarded import Guarded, guarded

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EDIT = {"original": "a = 1\n", "edit": '{"old_string": "a = 1", "new_string": "a = 2"}'}


def made(name: str = "ann", tenant: str = "acme", expires: datetime | None = None) -> tuple[AccessToken, str]:
    return make_token(name, tenant, frozenset({"apply"}), NOW, expires)


def test_a_token_is_known_by_its_text_alone_and_nothing_kept_gives_it_back() -> None:
    token, text = made()
    known = TokenSet().add_token(token)
    principal = known.find_principal(text, NOW)
    assert (principal.tenant, principal.scopes) == ("acme", {"apply"})
    assert re.fullmatch(r"hunk_[0-9a-f]{12}_[\w-]{43}", text)
    secret = text.split("_", 2)[2]
    assert secret not in repr(known)
    assert token.sha256 == hash_token(text)


def test_each_tenant_has_a_salt_of_its_own_that_outlives_all_tokens_but_its_last() -> None:
    first, second, other = made("a")[0], made("b")[0], made("c", "other")[0]
    known = TokenSet().add_token(first).add_token(second).add_token(other)
    salt = known.salts["acme"]
    assert len(salt) == 32
    assert salt != known.salts["other"]
    assert known.remove_token(first).salts["acme"] == salt
    again = known.remove_token(first).remove_token(second).add_token(first)
    assert again.salts["acme"] != salt
    assert again.salts["other"] == known.salts["other"]


@pytest.mark.parametrize("change", range(8))
def test_no_other_text_is_the_token(change: int) -> None:
    token, text = made()
    changed = [
        "",
        text[:-1],
        text + "A",
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        text.upper(),
        f" {text}",
        "hunk_" + "0" * 12 + text[17:],
        token.sha256,
    ][change]
    with pytest.raises(Unauthorized):
        TokenSet().add_token(token).find_principal(changed, NOW)


def test_a_token_expires() -> None:
    token, text = made(expires=NOW + timedelta(days=1))
    known = TokenSet().add_token(token)
    assert known.find_principal(text, NOW + timedelta(hours=23)).tenant == "acme"
    with pytest.raises(Unauthorized, match="'ann' has expired"):
        known.find_principal(text, NOW + timedelta(days=1))


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "config" / "tokens.json")


def test_the_file_is_private_and_holds_what_was_put_there(file: TokenFile) -> None:
    token, text = made(expires=NOW)
    file.change(lambda known: known.add_token(token))
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700
    assert file.read() == TokenSet([token], file.read().salts)
    assert text.split("_", 2)[2] not in file.path.read_text()
    assert list(file.path.parent.iterdir()) == [file.path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_use_is_refused(file: TokenFile, mode: int) -> None:
    file.change(lambda known: known)
    file.path.chmod(mode)
    with pytest.raises(TokensUnreadable, match="chmod 600"):
        file.read()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "damaged"),
        ("{}", "damaged: salts"),
        ('{"salts": {}, "tokens": [], "version": 2}', "damaged: version"),
        ('{"salts": {}, "tokens": [], "more": 1}', "damaged: more"),
        ('{"salts": {"a b": "%s"}, "tokens": []}' % ("0" * 32), "damaged"),
    ],
)
def test_a_damaged_file_is_refused_and_its_content_not_shown(file: TokenFile, content: str, said: str) -> None:
    file.change(lambda known: known)
    file.path.write_text(content)
    with pytest.raises(TokensUnreadable, match=said):
        file.read()


def test_a_token_without_salt_and_two_of_one_name_are_refused(file: TokenFile) -> None:
    token = made()[0]
    file.change(lambda known: known.add_token(token))
    held = json.loads(file.path.read_text())
    for changed in (held | {"salts": {}}, held | {"tokens": held["tokens"] * 2}):
        file.path.write_text(json.dumps(changed))
        with pytest.raises(TokensUnreadable, match="damaged"):
            file.read()


def test_a_pipe_in_the_files_place_is_not_waited_for(file: TokenFile) -> None:
    file.path.parent.mkdir()
    os.mkfifo(file.path, 0o600)
    with pytest.raises(TokensUnreadable, match="not a regular file"):
        file.read()


def test_the_address_that_a_sender_says_it_has_does_not_count(tmp_path: Path) -> None:
    """From loopback uvicorn believes X-Forwarded-For: another one each time was never slowed down."""
    with guarded(tmp_path, wanted={"one": ("acme", ("read",))}) as service:
        statuses = [
            service.ask("GET", "/stats", headers={"x-forwarded-for": f"10.0.0.{number}"}).status_code
            for number in range(BURST + 5)
        ]
    assert statuses == [401] * BURST + [429] * 5


def test_the_throttle_lets_a_burst_pass_and_then_one_at_a_time() -> None:
    now = 0.0
    throttle = Throttle(lambda: now)
    assert [throttle.record_failure("1.1.1.1") for _ in range(BURST)] == [0.0] * BURST
    assert throttle.record_failure("1.1.1.1") == REFILL_SECONDS
    assert throttle.record_failure("1.1.1.2") == 0.0
    now += REFILL_SECONDS
    assert throttle.record_failure("1.1.1.1") == 0.0
    assert throttle.record_failure("1.1.1.1") == REFILL_SECONDS
    now += 1e6
    assert [throttle.record_failure("1.1.1.1") for _ in range(BURST + 1)] == [0.0] * BURST + [REFILL_SECONDS]


def test_an_ipv6_client_counts_with_its_network() -> None:
    throttle = Throttle(lambda: 0.0)
    waits = [throttle.record_failure(f"2001:db8:1:2::{number:x}") for number in range(BURST + 1)]
    assert waits == [0.0] * BURST + [REFILL_SECONDS]
    assert throttle.record_failure("2001:db8:1:3::1") == 0.0
    assert throttle.record_failure("::ffff:10.0.0.1") == throttle.record_failure("::ffff:10.0.0.2") == 0.0


def test_the_table_of_addresses_is_bounded() -> None:
    throttle = Throttle(lambda: 0.0)
    for number in range(MAX_ADDRESSES + 100):
        throttle.record_failure(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(throttle) == MAX_ADDRESSES


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tokens")
    root = folder / "root"
    root.mkdir()
    (root / "a.py").write_text("a = 1\n")
    wanted = {"all": ("acme", ("apply", "read", "admin")), "apply": ("acme", ("apply",)), "read": ("acme", ("read",))}
    with guarded(folder, root, wanted) as running:  # type: ignore[arg-type]
        yield running


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer wrong")],
        [("authorization", "Basic YTpi")],
        [("authorization", "Bearer hunk_000000000000_" + "A" * 43)],
        [("authorization", "Bearer \xff\xfe")],
    ],
)
def test_without_a_right_token_there_is_401_and_a_challenge(
    service: Guarded, headers: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "BURST", 10_000)
    encoded = {name: value.encode("latin-1") for name, value in headers}
    response = service.ask("POST", "/apply", headers=encoded, json=EDIT)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:hunk:problem:unauthorized"


def test_two_tokens_at_once_are_none(service: Guarded) -> None:
    sent = [("authorization", f"Bearer {service.tokens['all']}"), ("authorization", "Bearer x")]
    assert httpx.post(f"{service.url}/apply", headers=sent, json=EDIT).status_code == 401


def test_a_right_token_is_let_in_whatever_the_case_of_its_scheme(service: Guarded) -> None:
    assert service.ask("POST", "/apply", "apply", json=EDIT).json()["merged"] == "a = 2\n"
    lower = {"authorization": f"bearer  {service.tokens['apply']}"}
    assert service.ask("POST", "/apply", headers=lower, json=EDIT).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("POST", "/apply", "apply"),
        ("POST", "/apply/batch", "apply"),
        ("POST", "/v1/chat/completions", "apply"),
        ("POST", "/v1/code/apply", "apply"),
        ("GET", "/workspaces", "read"),
        ("GET", "/workspaces/default/files/a.py", "read"),
        ("POST", "/workspaces", "admin"),
        ("DELETE", "/workspaces/default", "admin"),
        ("GET", "/metrics", "read"),
        ("GET", "/stats", "read"),
    ],
)
def test_each_route_needs_its_scope(service: Guarded, method: str, path: str, needed: str) -> None:
    body = {"json": EDIT} if method == "POST" else {}
    assert service.ask(method, path, **body).status_code in (401, 429)
    for name in ("apply", "read"):
        status = service.ask(method, path, name, **body).status_code
        if name == needed:
            assert status not in (401, 403)
        else:
            assert status == 403, name


def test_every_route_asks_for_a_token_but_those_that_are_open(service: Guarded) -> None:
    document = service.ask("GET", "/openapi.json", "read").json()
    asked = {
        (method, path): service.ask(method.upper(), re.sub(r"{[^}]*}", "x", path)).status_code
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert len(asked) > 5
    open_to_all = {path for (_, path), status in asked.items() if status not in (401, 429)}
    assert open_to_all <= {"/", "/healthz", "/readyz", "/static/{path}"}


def test_what_is_open_is_open_to_be_read_only(service: Guarded) -> None:
    assert service.ask("GET", "/healthz").status_code == 200
    assert service.ask("GET", "/readyz").status_code == 200
    assert service.ask("POST", "/healthz").status_code in (401, 429)
    for path in ("/healthz/", "/healthz/../apply", "//healthz", "/static", "/Healthz", "/static/../workspaces"):
        assert service.ask("GET", path).status_code in (401, 404, 429)


def test_whoever_fails_too_often_is_told_to_wait_and_a_right_token_passes_all_the_same(tmp_path: Path) -> None:
    with guarded(tmp_path, wanted={"all": ("acme", ("apply",))}) as service:
        statuses = [service.ask("POST", "/apply", json=EDIT).status_code for _ in range(BURST + 3)]
        assert statuses[:BURST] == [401] * BURST
        assert statuses[-1] == 429
        refused = service.ask("POST", "/apply", json=EDIT)
        assert 0 < int(refused.headers["retry-after"]) <= REFILL_SECONDS
        assert service.ask("POST", "/apply", "all", json=EDIT).status_code == 200


def test_a_change_of_the_file_holds_from_the_next_request_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with guarded(tmp_path, wanted={"all": ("acme", ("apply",)), "more": ("acme", ("apply",))}) as service:
        assert service.ask("POST", "/apply", "all", json=EDIT).status_code == 200
        service.file.change(lambda known: known.remove_token(known.find_token("all")))  # type: ignore[arg-type]
        assert service.ask("POST", "/apply", "all", json=EDIT).status_code == 401
        assert service.ask("POST", "/apply", "more", json=EDIT).status_code == 200
        held = service.file.path.read_bytes()
        service.file.path.write_bytes(held[:-20])
        with caplog.at_level(logging.ERROR, "hunk.tokens"):
            damaged = service.ask("POST", "/apply", "more", json=EDIT)
        assert damaged.status_code == 503
        assert damaged.json()["type"] == "urn:hunk:problem:tokens-unreadable"
        assert str(tmp_path) not in damaged.text
        assert "nobody is let in" in caplog.text
        service.file.path.write_bytes(held)
        assert service.ask("POST", "/apply", "more", json=EDIT).status_code == 200
        service.file.path.unlink()
        assert service.ask("POST", "/apply", "more", json=EDIT).status_code == 503


def test_live_tokens_need_a_file_to_begin_with(file: TokenFile) -> None:
    with pytest.raises(TokensUnreadable, match="No such file"):
        LiveTokens(file)


# The time of a refusal does not tell how much of a token is right: a measurement.
#
# Pairs of tokens are compared: one is wrong in the first character of its secret, the other in the last, as those of
# an attacker who guesses character by character. The same statistic is taken of the naive comparison, on texts so long
# that its early end shows: a measurement that does not see that one would see nothing.


NUM_PAIRS = 20_000
NAIVE_LEN = 50_000

TELLING = 0.9
"""Of pairs in which the same one is slower; without a difference it is a half."""

NOT_TELLING = 0.55


def share_of_slower(first: Callable[[], object], second: Callable[[], object], num_pairs: int) -> float:
    """In how many of many interleaved pairs `first` takes longer, ties counted as halves; the order is drawn."""
    slower = 0.0
    gc.disable()
    try:
        for _ in range(num_pairs):
            times = {}
            for act in random.sample((first, second), 2):
                started = time.perf_counter_ns()
                act()
                times[act] = time.perf_counter_ns() - started
            slower += 0.5 if times[first] == times[second] else times[first] > times[second]
    finally:
        gc.enable()
    return slower / num_pairs


@pytest.mark.e2e
def test_a_token_that_is_nearly_right_takes_no_longer() -> None:
    token, text = make_token("ann", "acme", frozenset({"apply"}), NOW)
    known = TokenSet().add_token(token)
    other = "A" if text[-1] != "A" else "B"
    at_once, at_last = f"{text[:18]}{other}{text[19:]}", text[:-1] + other
    assert len(at_once) == len(at_last) == len(text)
    assert text not in (at_once, at_last)

    def refused(sent: str) -> None:
        try:
            known.find_principal(sent, NOW)
        except Unauthorized:
            return
        raise AssertionError("let in")

    shares = [share_of_slower(lambda: refused(at_last), lambda: refused(at_once), NUM_PAIRS) for _ in range(3)]
    assert 1 - NOT_TELLING < statistics.median(shares) < NOT_TELLING, shares


@pytest.mark.e2e
def test_a_comparison_that_ends_early_would_be_seen() -> None:
    right = "x" * NAIVE_LEN
    at_once, at_last = "y" + right[1:], right[:-1] + "y"
    share = share_of_slower(lambda: right == at_last, lambda: right == at_once, 2_000)
    assert share > TELLING


@pytest.mark.e2e
def test_the_id_of_a_token_says_nothing_of_its_secret() -> None:
    """An ID that is known is no secret, but it costs the same hash and comparison as one that is not."""
    token, text = make_token("ann", "acme", frozenset({"apply"}), NOW)
    known = TokenSet().add_token(token)
    hashed = []

    def counted(sent: str) -> str:
        hashed.append(sent)
        return hash_token(sent)

    from agent_runtime.server import token_file

    hash_token = token_file.hash_token
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_file, "hash_token", counted)
        for sent in (text[:-1] + "_", "hunk_" + "0" * 12 + text[17:], "no token at all"):
            with pytest.raises(Unauthorized):
                known.find_principal(sent, NOW)
    assert len(hashed) == 3


def test_the_service_s_own_token_may_apply_and_is_in_no_file(file: TokenFile) -> None:
    file.change(lambda tokens: tokens)
    live = LiveTokens(file)
    own = live.make_own_token()
    principal = live.find_principal(own)
    assert principal.scopes == frozenset({"apply"})
    assert principal.tenant == "@commands"
    assert not file.read().tokens
    assert own.split("_")[1] not in file.path.read_text()
    with pytest.raises(Unauthorized):
        live.find_principal(own[:-1] + ("A" if own[-1] != "A" else "B"))
    with pytest.raises(Unauthorized):
        LiveTokens(file).find_principal(own)
    file.path.unlink()
    assert live.find_principal(own) == principal, "it does not depend on the file"


def test_a_service_announces_itself_with_a_token_that_its_user_alone_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = TokenFile(tmp_path / "tokens.json")
    token, _ = make_token("ann", "ann", frozenset({"read"}), datetime.now(UTC))
    file.change(lambda tokens: tokens.add_token(token))
    command = [sys.executable, "-m", "hunk", "serve", "--model", "none", "--port", "0", "--root", tmp_path]
    with subprocess.Popen([*command, "--tokens", file.path], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "listening" in process.stderr.readline()
        (service,) = wait_for_services()
        assert service.token is not None
        own = {"Authorization": f"Bearer {service.token}"}
        body = {"original": "a\n", "edit": {"old_string": "a", "new_string": "b"}}
        assert httpx.post(f"{service.url}/apply", json=body).status_code == 401
        assert httpx.post(f"{service.url}/apply", json=body, headers=own).json()["merged"] == "b\n"
        assert httpx.get(f"{service.url}/stats", headers=own).status_code == 403
        process.terminate()
        process.communicate(timeout=30)
    assert list_services() == []


def wait_for_services() -> list[RunningService]:
    until = time.monotonic() + 20
    while not (found := list_services()) and time.monotonic() < until:
        time.sleep(0.05)
    return found
