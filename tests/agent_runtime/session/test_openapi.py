"""The OpenAPI document is what the service does: each route is called once, and answers what is described there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from agent_runtime.server.service import Service
from agent_runtime.workspace.history import History
from agent_runtime.workspace.registry import WorkspaceRegistry
from tests.agent_runtime.serving import serving
from tests.agent_runtime.session.conftest import Served

EDIT = '{"old_string": "LIMIT = 30", "new_string": "LIMIT = 99"}'

Tour = dict[tuple[str, str], httpx.Response]


@pytest.fixture
def client(served: Served, root: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    (tmp_path / "shop").mkdir()

    def change(service: Service) -> Service:
        workspaces = WorkspaceRegistry(root, allowed=[tmp_path / "shop"], history=History(tmp_path / "history"))
        workspaces.set_tokenizer(served.chat().text.tokenizer)
        return replace(service, workspaces=workspaces)

    with serving(served, change=change) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def toured(client: httpx.Client, tmp_path: Path) -> Tour:
    """Each route once, by method and path."""
    seen: Tour = {}

    def call(method: str, path: str, /, body: Any = None, query: str = "", **names: str) -> Any:
        at = path.format(**{"name": "default", **names}) + query
        response = client.request(method, at, json=body)
        assert response.is_success, response.text
        seen[method, path] = response
        return (
            response.json() if response.headers.get("content-type") == "application/json" and response.content else None
        )

    for path in ("/healthz", "/readyz", "/metrics", "/stats", "/workspaces"):
        call("GET", path)
    call("POST", "/apply", {"path": "b.py", "edit": EDIT})
    call("POST", "/apply", {"path": "b.py", "edit": EDIT, "write": True})
    call("POST", "/undo", {})
    call("POST", "/apply/batch", {"requests": [{"path": "b.py", "edit": EDIT}]})
    call("POST", "/workspaces", {"root": str(tmp_path / "shop"), "name": "shop"})
    call("DELETE", "/workspaces/{name}", name="shop")
    call("GET", "/workspaces/{name}")
    call("GET", "/workspaces/{name}/files")
    call("GET", "/workspaces/{name}/files/{path}", path="b.py")
    while client.get("/workspaces/default/snapshot").status_code == 503:
        time.sleep(0.05)  # the files are being tokenised
    version = call("GET", "/workspaces/{name}/snapshot")["version"]
    call("GET", "/workspaces/{name}/changes", query=f"?since={version}&timeout_s=0")
    session = call("POST", "/sessions", {})["id"]
    call("POST", "/sessions/{session_id}/read", {"paths": ["b.py"]}, session_id=session)
    call("POST", "/sessions/{session_id}/ask", {"question": "What is it?", "max_tokens": 4}, session_id=session)
    call("POST", "/sessions/{session_id}/apply", {"path": "b.py", "edit": EDIT}, session_id=session)
    call("GET", "/sessions/{session_id}", session_id=session)
    call("DELETE", "/sessions/{session_id}", session_id=session)
    call("GET", "/v1/models")
    call("GET", "/v1/models/{name}", name="hunk")
    messages = [{"role": "user", "content": "Hello"}]
    call("POST", "/v1/chat/completions", {"model": "hunk", "messages": messages, "max_tokens": 4})
    call("POST", "/v1/code/apply", {"initial_code": "a = 1\n", "edit_snippet": "a = 1\nb = 2\n"})
    return seen


COUNTED = {"timings", "by_source", "recomputed_by", "outcomes"}
"""What has names only for what has happened."""


def alike(example: Any, answer: Any) -> bool:
    """Whether both have the same names and types; what is null in one may be anything in the other."""
    if example is None or answer is None:
        return True
    if isinstance(example, dict) and isinstance(answer, dict):
        names = example.keys() - COUNTED
        return names == answer.keys() - COUNTED and all(alike(example[name], answer[name]) for name in names)
    if isinstance(example, list) and isinstance(answer, list):
        return all(alike(one, other) for one, other in zip(example, answer, strict=False))
    numbers = (int, float)
    return type(example) is type(answer) or (isinstance(example, numbers) and isinstance(answer, numbers))


def test_each_route_answers_what_is_described(client: httpx.Client, tmp_path: Path) -> None:
    document = client.get("/openapi.json").json()
    components = document["components"]
    operations = {(m.upper(), path): each for path, of in document["paths"].items() for m, each in of.items()}
    tour = toured(client, tmp_path)
    assert tour.keys() == operations.keys()
    for place, response in tour.items():
        operation = operations[place]
        assert str(response.status_code) in operation["responses"], place
        assert operation["summary"], place
        assert operation["description"], place
        assert operation["tags"], place
        assert {"4XX", "5XX"} <= operation["responses"].keys(), place
        media = response.headers.get("content-type", "").partition(";")[0] if response.content else ""
        described = operation["responses"][str(response.status_code)].get("content", {})
        assert media in (described.keys() or {""}), place
        if media == "application/json":
            schema = described[media]["schema"] | {"components": components}
            Draft202012Validator.check_schema(schema)
            Draft202012Validator(schema).validate(response.json())
            example = described[media]["example"]
            Draft202012Validator(schema).validate(example)
            assert alike(example, response.json()), place


def test_examples_of_requests_are_what_the_document_allows(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    num_examples = 0
    for path, methods in document["paths"].items():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {})
            for body in content.values():
                name = body["schema"]["$ref"].rpartition("/")[2]
                schema = document["components"]["schemas"][name]
                assert schema["examples"], path
                for example in schema["examples"]:
                    num_examples += 1
                    Draft202012Validator(schema | {"components": document["components"]}).validate(example)
    assert num_examples
