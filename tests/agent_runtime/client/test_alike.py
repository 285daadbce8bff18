"""The blocking and the asynchronous client have the same methods, answers and errors; docs/sdk.md names them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import agent_runtime
from agent_runtime import client as sdk
from agent_runtime.client import (
    AsyncClient,
    AsyncItems,
    AsyncSession,
    AsyncStream,
    BatchItem,
    Client,
    Items,
    ModelEntry,
    Phase,
    Retries,
    Session,
    Stream,
    Timeouts,
    Tokens,
    WorkspaceRequest,
)
from agent_runtime.client.calls import Undo, UndoneFile
from agent_runtime.client.workspaces import AsyncClientWorkspaces, ClientWorkspaces
from agent_runtime.errors import (
    BadFile,
    BadRequest,
    Busy,
    CorruptModel,
    EditRefused,
    Forbidden,
    HunkError,
    ModelUnavailable,
    NoConnection,
    NoSuchWrite,
    Stale,
    TooManyRequests,
    Unauthorized,
    UnknownModel,
)
from agent_runtime.request_context import Piece
from agent_runtime.serialization import problem_to_json, result_to_json
from agent_runtime.testing import Events, FakeService, Lines, Reply, merged_result
from agent_runtime.types import ApplyRequest, PatchRequest, Reason
from tests.agent_runtime.client.both import Doing, both
from tests.agent_runtime.client.conftest import Chatting
from tests.agent_runtime.serving import serving

REQUEST = ApplyRequest(b"a = 1\n", "edit", "a.py", reuse="fast")
RESULT = merged_result("a = 1\n", "a = 2\n", "a.py")
TOKENS = Tokens((Piece("a = ", "copied"), Piece("2\u2028\x85", "generated")), 1)
APPLY = "POST /apply"

PATCH = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 3\n b = 2\n"


def apply(client: Any) -> Any:
    return client.apply(REQUEST)


def stream(client: Any) -> Any:
    return client.stream(REQUEST)


def batch(client: Any) -> Any:
    return client.apply_batch([REQUEST, REQUEST])


def test_an_edit_with_its_text() -> None:
    outcome, service = both(apply, lambda fake: fake.script(APPLY, RESULT))
    assert outcome.value == RESULT
    (sent,) = service.requests
    assert sent.body["original"] == "a = 1\n"
    assert (sent.body["path"], sent.body["edit"], sent.body["reuse"]) == ("a.py", "edit", "fast")
    assert "write" not in sent.body
    assert "idempotency-key" not in sent.headers


def test_an_edit_of_a_file_of_the_service_that_is_written() -> None:
    request = WorkspaceRequest("edit", "a.py", workspace="mine", expected_sha256="0" * 64, prediction="x")
    outcome, service = both(
        lambda client: client.apply(request, model="m", write=True), lambda fake: fake.script(APPLY, RESULT)
    )
    assert outcome.value == RESULT
    (sent,) = service.requests
    asked = {"path": "a.py", "workspace": "mine", "expected_sha256": "0" * 64, "prediction": "x", "write": True}
    assert {name: sent.body[name] for name in asked} == asked
    assert sent.body["model"] == "m"
    assert "original" not in sent.body
    assert len(sent.headers["idempotency-key"]) >= 32


def test_an_edit_of_many_files_of_the_service_with_their_hashes() -> None:
    request = WorkspaceRequest(PATCH, expected_sha256={"a.py": "0" * 64})
    _, service = both(lambda client: client.apply(request), lambda fake: fake.script(APPLY, RESULT))
    assert service.requests[0].body["files"] == [{"path": "a.py", "expected_sha256": "0" * 64}]
    assert "path" not in service.requests[0].body


@pytest.mark.parametrize(
    "request_",
    [WorkspaceRequest("e", expected_sha256="0"), WorkspaceRequest("e", "a.py", expected_sha256={"a.py": "0"})],
)
def test_hashes_that_do_not_fit_the_request_are_refused_before_it_is_sent(request_: WorkspaceRequest) -> None:
    outcome, service = both(lambda client: client.apply(request_), lambda fake: fake)
    assert outcome.error is not None
    assert outcome.error[0] is BadRequest
    assert service.requests == []


def test_a_patch_travels_with_the_files_that_it_names() -> None:
    outcome, service = both(
        lambda client: client.apply_patch(PatchRequest(PATCH), {"a.py": b"a = 1\nb = 2\n"}.get),
        lambda fake: fake.script(APPLY, RESULT),
    )
    assert outcome.value == RESULT
    assert service.requests[0].body["files"] == [{"path": "a.py", "original": "a = 1\nb = 2\n", "encoding": "utf-8"}]


def test_events_come_in_order_and_the_answer_last() -> None:
    events = (Phase("merge"), Phase("decode"), TOKENS, RESULT)
    outcome, service = both(stream, lambda fake: fake.script(APPLY, Events(*events)))
    assert outcome.value == [*events]
    assert service.requests[0].body["stream"] is True
    assert service.requests[0].headers["accept"] == "text/event-stream"


def test_the_answer_of_a_stream_alone() -> None:
    outcome, _ = both(
        lambda client: client.stream(REQUEST).result(), lambda fake: fake.script(APPLY, Events(Phase("merge"), RESULT))
    )
    assert outcome.value == RESULT


def test_a_batch_comes_as_it_finishes_with_refusals_in_between() -> None:
    refused = EditRefused("no", reasons=(Reason("not_found", "no place"),))
    items = (BatchItem(1, RESULT), BatchItem(0, refused))
    outcome, service = both(batch, lambda fake: fake.script("POST /apply/batch", Lines(*items)))
    assert outcome.value == [items[0], (0, (EditRefused, "no", problem_to_json(refused)))]
    assert len(service.requests[0].body["requests"]) == 2


def test_a_large_batch_is_sent_as_several_and_counted_through() -> None:
    scripts = (
        Lines(*(BatchItem(index, RESULT) for index in range(256))),
        Lines(BatchItem(1, RESULT), BatchItem(0, RESULT)),
    )
    outcome, service = both(
        lambda client: client.apply_batch([REQUEST] * 258, write=True),
        lambda fake: fake.script("POST /apply/batch", *scripts),
    )
    assert [item.index for item in outcome.value] == [*range(256), 257, 256]
    sent = [request for call in service.requests for request in call.body["requests"]]
    assert [len(call.body["requests"]) for call in service.requests] == [256, 2]
    assert all(request["write"] for request in sent)
    assert len({request["idempotency_key"] for request in sent}) == 258


def test_nothing_is_sent_for_an_empty_batch() -> None:
    outcome, service = both(lambda client: client.apply_batch([]), lambda fake: fake)
    assert (outcome.value, service.requests) == ([], [])


def test_questions_about_the_service() -> None:
    models = {"object": "list", "data": [{"id": "qwen", "object": "model", "created": 0, "owned_by": "hunk"}]}
    assert both(lambda client: client.models(), lambda fake: fake.script("GET /v1/models", models))[0].value == (
        ModelEntry("qwen", "hunk"),
    )
    assert both(lambda client: client.stats(), lambda fake: fake.script("GET /stats", {"queue": 1}))[0].value == {
        "queue": 1
    }
    assert both(lambda client: client.health(), lambda fake: fake.script("GET /healthz", {"status": "ok"}))[0].value
    ready = {"status": "ready", "model": "qwen"}
    assert both(lambda client: client.is_ready(), lambda fake: fake.script("GET /readyz", ready))[0].value is True


def test_an_undo_is_asked_for_once_and_read() -> None:
    answer = {"id": "b" * 12, "undoes": "a" * 12, "files": [{"path": "a.py", "before": "0" * 64, "after": None}]}
    outcome, service = both(lambda client: client.undo("aaa"), lambda fake: fake.script("POST /undo", answer))
    assert outcome.value == Undo("b" * 12, "a" * 12, (UndoneFile("a.py", "0" * 64, None),))
    assert [request.body for request in service.requests] == [{"id": "aaa", "workspace": None}]
    gone = both(lambda client: client.undo(), lambda fake: fake.script("POST /undo", NoSuchWrite("none")))[0]
    assert gone.error is not None
    assert gone.error[0] is NoSuchWrite


def test_a_service_that_is_not_ready_is_asked_once() -> None:
    loading = ModelUnavailable("still being loaded")
    outcome, service = both(lambda client: client.is_ready(), lambda fake: fake.script("GET /readyz", loading))
    assert outcome.value is False
    assert len(service.requests) == 1


FAULTS = [
    BadRequest("malformed", field="edit"),
    BadFile("binary"),
    Stale("changed", current_sha256="1" * 64),
    Unauthorized("no token"),
    Forbidden("no scope"),
    EditRefused("no", reasons=(Reason("not_found", "no such line", suggestion="send another"),)),
    UnknownModel("which?"),
    CorruptModel("gone"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("doing", [apply, stream, batch])
def test_what_the_service_refuses_is_raised_as_the_same_error_and_asked_once(fault: HunkError, doing: Doing) -> None:
    route = "POST /apply/batch" if doing is batch else APPLY
    outcome, service = both(doing, lambda fake: fake.script(route, fault))
    assert outcome.error == (type(fault), str(fault), problem_to_json(fault))
    assert len(service.requests) == 1


@pytest.mark.parametrize("fault", [EditRefused("no"), Busy("later")])
def test_a_problem_in_a_stream_is_raised(fault: HunkError) -> None:
    outcome, service = both(stream, lambda fake: fake.script(APPLY, Events(Phase("merge"), fault)))
    assert outcome.error is not None
    assert outcome.error[:2] == (type(fault), str(fault))
    assert len(service.requests) == 1, "what has begun is not begun again"


PASSING = [
    Busy("later"),
    TooManyRequests("slow down", retry_after_s=0.0),
    Reply(b"<html>bad gateway</html>", 502),
    Reply(b"", 504, {"retry-after": "0"}),
    httpx.ConnectError("refused"),
    httpx.ReadError("reset"),
]


def at_once(scripted: Any) -> Any:
    if isinstance(scripted, HunkError):
        scripted.retry_after_s = 0.0
    return scripted


@pytest.mark.parametrize("first", PASSING, ids=repr)
@pytest.mark.parametrize("doing", [apply, stream])
def test_what_may_be_over_in_a_moment_is_asked_again(first: object, doing: Doing) -> None:
    good = RESULT if doing is apply else Events(RESULT)
    outcome, service = both(doing, lambda fake: fake.script(APPLY, at_once(first), at_once(first), good))
    assert outcome.value == (RESULT if doing is apply else [RESULT])
    assert len(service.requests) == 3
    assert service.requests[0].body == service.requests[2].body


@pytest.mark.parametrize("first", PASSING, ids=repr)
def test_a_fault_that_stays_is_raised_in_the_end(first: object) -> None:
    outcome, service = both(apply, lambda fake: fake.script(APPLY, at_once(first)))
    assert outcome.error is not None
    assert len(service.requests) == 3


def test_a_write_is_asked_again_with_its_key() -> None:
    outcome, service = both(
        lambda client: client.apply(WorkspaceRequest("edit", "a.py"), write=True),
        lambda fake: fake.script(APPLY, httpx.ReadError("reset"), RESULT),
    )
    assert outcome.value == RESULT
    keys = {sent.headers["idempotency-key"] for sent in service.requests}
    assert (len(service.requests), len(keys)) == (2, 1)


def test_two_writes_have_two_keys_and_a_given_one_is_taken() -> None:
    fake = FakeService().script(APPLY, RESULT)
    with Client("http://fake", transport=fake) as client:
        for key in ("mine", "other"):
            client.apply(WorkspaceRequest("e", "a.py"), write=True, idempotency_key=key)
        client.apply(WorkspaceRequest("e", "a.py"), write=True)
        client.apply(WorkspaceRequest("e", "a.py"), write=True)
    keys = [sent.headers["idempotency-key"] for sent in fake.requests]
    assert keys[:2] == ["mine", "other"]
    assert len(set(keys)) == 4


def test_where_a_write_was_not_answered_the_error_says_how_to_ask_again_safely() -> None:
    outcome, _ = both(
        lambda client: client.apply(WorkspaceRequest("e", "a.py"), write=True, idempotency_key="mine"),
        lambda fake: fake.script(APPLY, httpx.ReadError("reset")),
    )
    assert outcome.error is not None
    assert outcome.error[0] is NoConnection
    assert "idempotency_key='mine'" in outcome.error[1]


def test_a_batch_is_never_asked_again() -> None:
    for first in (httpx.ReadError("reset"), Reply(b"", 503, {"retry-after": "0"})):
        outcome, service = both(batch, lambda fake, first=first: fake.script("POST /apply/batch", first))
        assert outcome.error is not None
        assert len(service.requests) == 1


BROKEN = [
    Reply(b"<html>"),
    Reply([]),
    Reply({}),
    Reply({"files": [{"path": "a.py"}], "usage": {}, "timings": {}}),
    Reply(None),
    Reply(b"no JSON", 400),
    Reply(b"[1]", 400),
]


@pytest.mark.parametrize("doing", [apply, stream, batch])
@pytest.mark.parametrize("reply", BROKEN, ids=repr)
def test_an_answer_that_is_not_hunks_is_an_error_and_no_traceback(reply: Reply, doing: Doing) -> None:
    route = "POST /apply/batch" if doing is batch else APPLY
    outcome, _ = both(doing, lambda fake: fake.script(route, reply))
    assert outcome.error is not None
    assert outcome.error[0] is HunkError


CUT = [
    b"",
    b"event: phase\ndata: {}\n\n",
    b"event: tokens\ndata: nonsense\n\n",
    b"event: result\ndata: {}\n\n",
    b"event: problem\ndata: 7\n\n",
    b'event: phase\ndata: {"phase": "merge"}\n\n',
    b'event: result\ndata: {"files"',
]


@pytest.mark.parametrize("sent", CUT)
def test_a_stream_without_an_answer_is_an_error(sent: bytes) -> None:
    reply = Reply(sent, headers={"content-type": "text/event-stream"})
    outcome, _ = both(stream, lambda fake: fake.script(APPLY, reply))
    assert outcome.error is not None
    assert issubclass(outcome.error[0], HunkError)


def test_events_of_later_versions_and_heartbeats_are_passed_over() -> None:
    result = json.dumps(result_to_json(RESULT))
    sent = f": beat\n\nevent: weather\ndata: sunny\n\n: beat\n\nevent: result\ndata: {result}\n\n".encode()
    reply = Reply(sent, headers={"content-type": "text/event-stream; charset=utf-8"})
    assert both(stream, lambda fake: fake.script(APPLY, reply))[0].value == [RESULT]


@pytest.mark.parametrize("sent", [b"", b'{"index": 0}\n', b"{}\n{}\n", b"nonsense\n", b'{"index": 0, "res'])
def test_a_batch_that_lacks_an_answer_is_an_error(sent: bytes) -> None:
    reply = Reply(sent, headers={"content-type": "application/x-ndjson"})
    outcome, _ = both(batch, lambda fake: fake.script("POST /apply/batch", reply))
    assert outcome.error is not None
    assert issubclass(outcome.error[0], HunkError)


def test_errors_of_the_openai_routes_are_ours_too() -> None:
    refused = Reply({"error": {"message": "who?", "type": "invalid_request_error", "code": None}}, 401)
    outcome, _ = both(lambda client: client.models(), lambda fake: fake.script("GET /v1/models", refused))
    assert outcome.error is not None
    assert outcome.error[:2] == (Unauthorized, "who?")


@pytest.mark.parametrize("edit", ["half of \ud83d", "\udc80"])
def test_what_cannot_be_sent_is_a_bad_request(edit: str) -> None:
    outcome, service = both(lambda client: client.apply(ApplyRequest(b"", edit)), lambda fake: fake)
    assert outcome.error is not None
    assert outcome.error[0] is BadRequest
    assert service.requests == []


PAIRS = [
    (Client, AsyncClient),
    (ClientWorkspaces, AsyncClientWorkspaces),
    (Session, AsyncSession),
    (Stream, AsyncStream),
    (Items, AsyncItems),
]


def public(cls: type) -> dict[str, Any]:
    """Public methods and properties; `close` is `aclose` where it must be awaited."""
    found = {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}
    return {"close" if name == "aclose" else name: member for name, member in found.items()}


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_clients_have_one_surface(blocking: type, asynchronous: type) -> None:
    ours, theirs = public(blocking), public(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        if not callable(method):
            assert type(method) is type(theirs[name]), name
            continue
        assert _parameters(method) == _parameters(theirs[name]), name
        assert _answer(method) == _answer(theirs[name]).replace("Async", ""), name


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_clients_are_made_alike(blocking: type, asynchronous: type) -> None:
    ours, theirs = (inspect.signature(cls).parameters for cls in (blocking, asynchronous))
    assert [*ours] == [*theirs]
    assert [one.default for one in ours.values()] == [one.default for one in theirs.values()]


def _parameters(method: Any) -> list[tuple[str, Any, Any, str]]:
    return [
        (one.name, one.kind, one.default, str(one.annotation)) for one in inspect.signature(method).parameters.values()
    ]


def _answer(method: Any) -> str:
    return str(inspect.signature(method).return_annotation)


def test_the_clients_are_imported_without_torch_and_what_else_only_a_service_needs() -> None:
    heavy = ("torch", "numpy", "tokenizers", "fastapi", "uvicorn", "pydantic", "tree_sitter")
    program = (
        f"from agent_runtime import Client, AsyncClient; import sys; print([m for m in {heavy} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_can_be_had_from_the_package() -> None:
    for name in agent_runtime.__all__:
        assert getattr(agent_runtime, name) is not None
        assert name in dir(agent_runtime)
    for name in sdk.__all__:
        assert getattr(sdk, name) is not None
    with pytest.raises(AttributeError, match="nosuch"):
        _ = agent_runtime.nosuch


DOC = (Path(__file__).resolve().parents[3] / "docs" / "sdk.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)


def test_every_snippet_runs(tmp_path: Path, chatting: Chatting, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    with serving(chatting("LIMIT = 20\n"), root) as url:
        monkeypatch.setenv("HUNK_URL", url)
        for number, snippet in enumerate(SNIPPETS):
            (root / "limits.py").write_text("LIMIT = 10\n")
            program = compile(snippet.replace("http://127.0.0.1:8311", url), f"snippet {number} of docs/sdk.md", "exec")
            exec(program, {"__name__": "__main__"})
    assert len(SNIPPETS) >= 9


def test_what_the_snippets_print_is_there(tmp_path: Path) -> None:
    (tmp_path / "limits.py").write_text("LIMIT = 10\n")
    with serving(None, tmp_path) as url:
        for snippet, said in zip(SNIPPETS, ("merged certain LIMIT = 20\n", "merged certain\n"), strict=False):
            program = snippet.replace("http://127.0.0.1:8311", url)
            ran = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
            )
            assert ran.stdout.startswith(said)
    assert "+LIMIT = 20" in ran.stdout


def test_every_public_method_is_named() -> None:
    table = DOC.partition("## All methods")[2]
    named = set(re.findall(r"\w+", table))
    for cls in (Client, Session, ClientWorkspaces):
        public = {name for name in vars(cls) if not name.startswith("_")} - {"close"}
        assert public <= named, public - named


def test_the_defaults_that_it_names_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+_s)` \| (\w+) \|", DOC, re.MULTILINE))
    assert rows == {
        field.name: "None" if field.default is None else f"{field.default:g}" for field in dataclasses.fields(Timeouts)
    }
    retries = Retries()
    assert f"below {retries.first_s:g} and {2 * retries.first_s:g} s" in DOC
    assert f"where that is over {retries.longest_retry_after_s:g} s" in DOC
    assert retries.times == 2
