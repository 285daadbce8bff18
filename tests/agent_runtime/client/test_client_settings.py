"""Settings of a client: address, token and timeouts, their sources, and refused values."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agent_runtime import Client, Timeouts
from agent_runtime.client.calls import Call, build_path, quote_file_path
from agent_runtime.client.transport import DEFAULT_URL, ClientSettings, Transport
from agent_runtime.errors import BadRequest, NoConnection
from agent_runtime.testing import FakeService, Reply


def test_what_is_given_goes_before_the_environment_and_that_before_the_default() -> None:
    env = {"HUNK_URL": "http://there:1", "HUNK_TOKEN": "secret"}
    assert ClientSettings.from_env({}).base_url == DEFAULT_URL
    assert ClientSettings.from_env({}).token is None
    assert (ClientSettings.from_env(env).base_url, ClientSettings.from_env(env).token) == ("http://there:1", "secret")
    given = ClientSettings.from_env(env, base_url="https://here", token="mine")
    assert (given.base_url, given.token) == ("https://here", "mine")
    assert ClientSettings.from_env({"HUNK_URL": "", "HUNK_TOKEN": ""}) == ClientSettings()


@pytest.mark.parametrize("url", ["localhost:8311", "ftp://x", "http://", "", "http://x:port", "file:///etc"])
def test_a_url_that_is_none_is_refused_and_named(url: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ClientSettings.from_env({}, base_url=url)
    assert refused.value.field == "base_url"
    if url:
        with pytest.raises(BadRequest, match="HUNK_URL"):
            ClientSettings.from_env({"HUNK_URL": url})


@pytest.mark.parametrize("token", ["two words", "line\n", "ümlaut", ""])
def test_a_token_that_cannot_be_one_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ClientSettings.from_env({}, token=token)
    assert not token or token not in str(refused.value)
    assert "secret" not in repr(ClientSettings(token="secret"))


def test_the_token_and_the_environment_reach_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_TOKEN", "from-env")
    monkeypatch.setenv("HUNK_URL", "http://there/prefix/")
    fake = FakeService().script("GET /prefix/stats", {})
    with Client(transport=fake) as client:
        client.stats()
    assert fake.requests[0].headers["authorization"] == "Bearer from-env"
    assert fake.requests[0].headers["host"] == "there"


def test_no_token_no_header() -> None:
    fake = FakeService().script("GET /stats", {})
    with Client("http://fake", transport=fake) as client:
        client.stats()
    assert "authorization" not in fake.requests[0].headers


def test_a_proxy_of_the_environment_is_not_asked_for_a_service_on_this_machine() -> None:
    for url in ("http://127.0.0.1:8311", "http://localhost:1", "http://[::1]:1"):
        assert Transport(ClientSettings(url)).build_options()["trust_env"] is False
    assert Transport(ClientSettings("http://elsewhere")).build_options()["trust_env"] is True


def test_work_may_take_as_long_as_it_takes_and_a_question_may_not() -> None:
    wire = Transport(ClientSettings())
    calls: list[Call[Any]] = [
        Call("GET", "/stats", dict),
        Call("POST", "/apply", dict, works=True),
        Call("GET", "/changes", dict, silence_s=60.0),
    ]
    with httpx.Client(base_url="http://x") as http:
        assert [wire.build_request(http, call).extensions["timeout"]["read"] for call in calls] == [30.0, None, 90.0]


def test_an_answer_that_comes_too_late_is_no_connection() -> None:
    fake = FakeService().script("GET /stats", Reply({}, after_s=5.0))
    with (
        Client("http://fake", transport=fake, timeouts=Timeouts(read_s=0.01)) as client,
        pytest.raises(NoConnection, match="silent for longer"),
    ):
        client.stats()


def test_names_in_paths_stay_one_segment_and_dots_reach_the_service() -> None:
    assert build_path("workspaces", "a/b?c#d %") == "/workspaces/a%2Fb%3Fc%23d%20%25"
    assert build_path("workspaces", "..") == "/workspaces/%2E%2E"
    assert quote_file_path("../a b/./c.py") == "%2E%2E/a%20b/%2E/c.py"
    sent = httpx.Client(base_url="http://x").build_request("GET", build_path("w") + "/" + quote_file_path("../../x"))
    assert sent.url.raw_path == b"/w/%2E%2E/%2E%2E/x"
