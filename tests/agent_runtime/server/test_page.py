"""The page's files as they are sent: nothing from elsewhere, nothing inline, cached by what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from agent_runtime.server.docs_page import render_docs
from agent_runtime.server.routes.system import load_assets
from tests.agent_runtime.serving import serving

ELSEWHERE = re.compile(r"""(?:https?:)?//[\w.-]+\.\w+|@import|url\(""")
IMPORTS = re.compile(r"""^import .* from "(.+)";$""", re.MULTILINE)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(None) as url, httpx.Client(base_url=url) as client:
        yield client


def test_the_page_may_load_from_this_service_only(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    names = "default-src script-src style-src connect-src img-src base-uri form-action frame-ancestors"
    assert [part.split()[0] for part in policy.split("; ")] == names.split()
    assert page.headers["referrer-policy"] == "no-referrer"


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    for place, asset in load_assets().items():
        text = asset.content.decode()
        if place.endswith(".svg"):
            text = text.replace("http://www.w3.org/2000/svg", "")
        assert not ELSEWHERE.search(text), place
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            place
        )
    html = load_assets()[""].content.decode()
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\bon\w+=|\bstyle=|javascript:", html)


def test_all_that_the_page_loads_is_there_and_may_be_kept_for_good(client: httpx.Client) -> None:
    pages = client.get("/").text + client.get("/docs").text
    places = re.findall(r'(?:src|href)="(static/[^"]+)"', pages)
    assert len(places) >= 4
    seen = set[str]()
    while places:
        place = places.pop()
        seen.add(place)
        answer = client.get(f"/{place}")
        assert answer.status_code == 200, place
        assert "immutable" in answer.headers["cache-control"]
        folder = place.rpartition("/")[0]
        places += [one for name in IMPORTS.findall(answer.text) if (one := f"{folder}/{name[2:]}") not in seen]
    assert seen == {f"static/{place}" for place in load_assets() if place}, "all files are used"


def test_who_has_the_page_is_not_sent_it_again(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": f'"other", W/{page.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == page.headers["content-security-policy"]
    assert client.get("/", headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.head("/").headers["etag"] == page.headers["etag"]


@pytest.mark.parametrize(
    "place", ["", "page.js", "../pyproject.toml", "%2e%2e/__init__.py", "x/page.js", "__init__.py"]
)
def test_other_places_are_problems(client: httpx.Client, place: str) -> None:
    version = next(iter(load_assets())).partition("/")[0]
    for path in (f"/static/{place}", f"/static/{version}/{place}x"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:hunk:problem:no-such-route"


def test_every_route_and_schema_of_the_description_is_on_the_page_of_the_api(client: httpx.Client) -> None:
    page, described = client.get("/docs"), client.get("/openapi.json").json()
    assert page.headers["content-security-policy"] == client.get("/").headers["content-security-policy"]
    found = re.findall(r'<h2><span class="[A-Z]+">([A-Z]+)</span> <code>([^<]+)</code></h2>', page.text)
    routes = [(method.upper(), path) for path, methods in described["paths"].items() for method in methods]
    assert sorted(found) == sorted(routes)
    names = set(re.findall(r'<h3 id="schema-([^"]+)">', page.text))
    assert names == described["components"]["schemas"].keys()
    assert set(re.findall(r'href="#schema-([^"]+)"', page.text)) <= names
    assert "<code>base_sha256</code>" in page.text
    assert client.get("/docs", headers={"If-None-Match": page.headers["etag"]}).status_code == 304


def test_what_a_description_says_is_never_markup() -> None:
    text = "<script>x</script> `<b>`"
    field = {"type": "string", "description": text, "default": "</pre><i>"}
    schema = {"properties": {"<u>": field}, "description": text, "examples": ["</pre><i>"], "type": "object"}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    route = {"tags": ["<em>"], "operationId": "a", "description": text, "requestBody": body, "responses": {}}
    html = render_docs(
        {
            "info": {"version": "1", "summary": text},
            "paths": {"/<p>": {"post": route}},
            "components": {"schemas": {"A": schema}},
        }
    )
    for markup in ("<script", "<b>`", "<u>", "<i>", "<em>", "/<p>"):
        assert markup not in html
    assert "<code>&lt;b&gt;</code>" in html
