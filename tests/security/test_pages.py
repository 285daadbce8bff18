"""What a foreign web page can make a browser send to the service, and what it learns from the answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.server.uvicorn_server import SAFE_HEADERS
from tests.security.guarded import Guarded, guarded

FILE = "/workspaces/default/files/a.py"
LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FRAME = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
PICTURE = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    root = tmp_path_factory.mktemp("pages")
    (root / "a.py").write_text("a = 1\n")
    with guarded(root, root) as running:
        yield running


def status(service: Guarded, path: str, headers: dict[str, str], method: str = "GET") -> int:
    return service.ask(method, path, headers=headers).status_code


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "anything"])
def test_what_a_page_elsewhere_loads_is_refused_whether_it_is_there_or_not(service: Guarded, site: str) -> None:
    """`<object data=...>` told it, by load or error, which files there are."""
    for how in (PICTURE, FRAME, LINK, {}):
        for path in (FILE, FILE + "/none", "/workspaces/default/snapshot", "/healthz", "/static/none"):
            assert status(service, path, {"sec-fetch-site": site, **how}) == 403
    for how in (PICTURE, FRAME, {}):
        assert status(service, "/", {"sec-fetch-site": site, **how}) == 403
    assert status(service, "/", {"sec-fetch-site": site, **LINK}, "POST") == 403


def test_the_page_itself_its_user_and_links_to_it_are_let_in(service: Guarded) -> None:
    for site in ("same-origin", "none"):
        for path in (FILE, "/", "/healthz"):
            assert status(service, path, {"sec-fetch-site": site}) == 200
    assert status(service, "/", {"sec-fetch-site": "cross-site", **LINK}) == 200
    assert status(service, FILE, {}) == 200, "no browser"


FOREIGN = """
http://localhost:3000 http://127.0.0.1 https://127.0.0.1:{port}x chrome-extension://localhost http://127.0.0.1:{port}/
http://a@127.0.0.1:{port} ws://127.0.0.1:{port} http://localhost:{port} 127.0.0.1:{port} http:// null
"""


@pytest.mark.parametrize("origin", [*FOREIGN.split(), ""])
def test_a_page_of_another_port_scheme_or_name_of_this_machine_is_foreign(service: Guarded, origin: str) -> None:
    port = service.address[1]
    assert status(service, "/healthz", {"origin": origin.format(port=port)}) == 403
    assert status(service, "/healthz", {"origin": f"http://127.0.0.1:{port}"}) == 200


@pytest.mark.parametrize(
    "host",
    ["a@127.0.0.1", "127.0.0.1/x", "[::1]evil", "[::1", "127.0.0.1:", "127.0.0.1:x", "localhost:1:2", "local host"],
)
def test_a_host_is_a_name_and_a_port_and_nothing_else(service: Guarded, host: str) -> None:
    assert status(service, "/healthz", {"host": host}) in (400, 403)


def test_names_that_were_given_are_let_in_behind_a_proxy_whatever_port_it_has() -> None:
    from agent_runtime.server.auth import HostGuardMiddleware

    guard = HostGuardMiddleware(None, ["127.0.0.1", "Hunk.Example", "::2"])  # type: ignore[arg-type]

    def is_let_in(host: str, origin: str | None = None) -> bool:
        sent = [(b"host", host.encode())] + ([] if origin is None else [(b"origin", origin.encode())])
        return guard._find_fault({"type": "http", "method": "GET", "path": "/", "headers": sent}) is None

    for host in ("hunk.example", "HUNK.example:443", "127.0.0.1:8311", "[::2]:80", "[::1]"):
        assert is_let_in(host)
    assert is_let_in("127.0.0.1:8311", "https://hunk.example")
    assert is_let_in("localhost", "https://localhost:443")
    assert not is_let_in("127.0.0.1:8311", "https://127.0.0.1")
    assert not is_let_in("hunk.example", "https://evil.hunk.example")


def test_every_answer_keeps_other_pages_from_it(service: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fault of ours, too, and of what is no HTTP, neither of which passes the middleware."""

    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(Applier, "apply", broken)
    edit = {"original": "a", "edit": "b"}
    answers = [service.ask("GET", path) for path in ("/", "/healthz", FILE, "/none", "/metrics", "/readyz")]
    answers += [service.ask("POST", "/apply", json=edit), service.ask("GET", "/", headers={"host": "evil.example"})]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 200, 200, 500, 403]
    for answer in answers:
        for name, value in SAFE_HEADERS:
            assert answer.headers.get_list(name) == [value], answer.url
    with socket.create_connection(service.address, timeout=30) as connection:
        connection.sendall(b"NONSENSE\r\n\r\n")
        said = connection.recv(65536)
    assert json.loads(said.split(b"\r\n\r\n", 1)[1])["status"] == 400
    assert all(f"{name}: {value}\r\n".encode() in said for name, value in SAFE_HEADERS)


def test_a_method_that_the_sender_made_up_is_no_label_of_its_own(service: Guarded) -> None:
    """Each was, for ever: 2,000 of 8 KB made 32 MB of `/metrics`, without a token."""
    for number in range(5):
        assert service.ask(f"M{number}" + "A" * 2000, "/healthz").status_code == 405
    counted = service.ask("GET", "/metrics").text
    assert "AAAA" not in counted
    assert 'hunk_http_requests_total{method="other",route="/healthz",status="405"} 5.0' in counted


def test_with_text_needs_the_scope_that_reading_a_file_needs(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    wanted: Any = {"writer": ("acme", ("apply",)), "both": ("acme", ("apply", "read"))}
    with guarded(tmp_path / "state", tmp_path, wanted) as service:
        place = service.ask("POST", "/sessions", "writer", json={}).headers["location"]
        for token, with_text, expected in [("writer", True, 403), ("writer", False, 200), ("both", True, 200)]:
            body = {"paths": ["a.py"], "with_text": with_text}
            assert service.ask("POST", f"{place}/read", token, json=body).status_code == expected
