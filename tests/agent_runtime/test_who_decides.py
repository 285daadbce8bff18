"""Who decides on an edit: rules, or a model that was asked for. Nobody guesses where an edit's text stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest

from agent_runtime import AsyncClient, Client, LocalClient, WorkspaceRequest
from agent_runtime.apply.pipeline import Applier
from agent_runtime.client import local
from agent_runtime.errors import EditRefused, ModelUnavailable
from agent_runtime.types import ApplyRequest, Mode, PatchRequest
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving

FILE = "".join(f"def {name}():\n    timeout = 10\n    return timeout\n\n\n" for name in "abc")
OLD, NEW = "    timeout = 10\n", "    timeout = 30\n"
"""The old text stands in three functions."""

AMBIGUOUS = {
    "replace": json.dumps({"old_string": OLD, "new_string": NEW}),
    "search_replace": f"<<<<<<< SEARCH\n{OLD}=======\n{NEW}>>>>>>> REPLACE\n",
    "udiff": f"@@\n-{OLD}+{NEW}",
    "v4a": f"*** Begin Patch\n*** Update File: a.py\n@@\n-{OLD}+{NEW}*** End Patch\n",
}
MISSING = {name: edit.replace("timeout = 10", "timeout = 11") for name, edit in AMBIGUOUS.items()} | {
    "lines": json.dumps({"start_line": 2, "end_line": 2, "old": "    timeout = 11", "new": "    timeout = 30"}),
}
OPEN = {
    "lines": json.dumps({"start_line": 2, "end_line": 2, "new": "    timeout = 30"}),
    "whole": "def a():\n    timeout = 30\n    return timeout\n\n\n# ... existing code ...\n",
    "search_replace": "<<<<<<< SEARCH\ndef a():\n=======\n# ... existing code ...\ndef aa():\n>>>>>>> REPLACE\n",
}
EXPLICIT = [(name, edit) for edits in (AMBIGUOUS, MISSING, OPEN) for name, edit in edits.items()]
SNIPPET = "# ... existing code ...\n    timeout = 30\n# ... existing code ...\n"


@dataclass
class Asked:
    """A place of a model that counts who comes for it."""

    merger: ScriptedMerger | None = None
    times: int = 0

    def get(self) -> ScriptedMerger:
        self.times += 1
        if self.merger is None:
            raise ModelUnavailable("there is no model in this test")
        return self.merger


def request(edit: str, **options: Any) -> ApplyRequest:
    return ApplyRequest(FILE.encode(), edit, "a.py", **options)


@pytest.mark.parametrize(
    ("name", "edit"), EXPLICIT + [("auto", edit) for name, edit in EXPLICIT if name != "whole"]
)  # a whole file is taken for one only where it is named
def test_an_edit_without_one_place_is_refused_and_no_model_is_come_for(name: Any, edit: str) -> None:
    asked = Asked()
    with pytest.raises(EditRefused) as refused:
        Applier(asked.get).apply(request(edit, format=name))
    (reason,) = refused.value.reasons
    assert asked.times == 0
    assert reason.suggestion, "what to send instead"
    assert (refused.value.exit_code, refused.value.http_status) == (3, 422)


@pytest.mark.parametrize("edit", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_all_places_are_named(edit: str) -> None:
    with pytest.raises(EditRefused) as refused:
        Applier(Asked().get).apply(request(edit))
    (reason,) = refused.value.reasons
    assert (reason.code, reason.num_candidates) == ("ambiguous", 3)
    for line in ("2", "7", "12"):
        assert line in reason.reason + reason.nearest


@pytest.mark.parametrize(("name", "edit"), EXPLICIT)
def test_the_model_is_asked_where_the_request_says_so(name: Any, edit: str) -> None:
    asked = Asked(ScriptedMerger(FILE.replace(OLD, NEW, 1), choice=None))
    made = Applier(asked.get).apply(request(edit, format=name, mode="model"))
    assert asked.times == 1
    assert made.file.certainty == "model"


def test_a_choice_that_was_asked_for_is_scored_and_never_certain() -> None:
    made = Applier(Asked(ScriptedMerger(choice=0)).get).apply(
        request(AMBIGUOUS["search_replace"], mode="model", decide="score")
    )
    assert (made.file.method, made.file.certainty) == ("model", "scored")


@pytest.mark.parametrize("mode", ["auto", "deterministic"])
def test_an_edit_with_one_place_is_merged_by_rule(mode: Mode) -> None:
    asked = Asked()
    edit = f"<<<<<<< SEARCH\ndef b():\n{OLD}=======\ndef b():\n{NEW}>>>>>>> REPLACE\n"
    made = Applier(asked.get).apply(request(edit, mode=mode))
    assert (made.file.method, made.file.certainty, asked.times) == ("deterministic", "certain", 0)


def test_a_lazy_snippet_goes_to_the_model_unless_rules_only_were_asked_for() -> None:
    asked = Asked(ScriptedMerger(FILE.replace(OLD, NEW, 1)))
    assert Applier(asked.get).apply(request(SNIPPET)).file.method == "model"
    with pytest.raises(EditRefused):
        Applier(asked.get).apply(request(SNIPPET, mode="deterministic"))
    assert asked.times == 1


def test_one_file_of_several_that_is_refused_keeps_the_model_from_the_others() -> None:
    asked = Asked(ScriptedMerger(FILE))
    for others in ([], [request(SNIPPET)]):
        with pytest.raises(EditRefused):
            Applier(asked.get).apply_each([*others, request(AMBIGUOUS["replace"])])
    patch = AMBIGUOUS["v4a"].replace("*** End", "*** Update File: b.py\n@@\n-x = 1\n+x = 2\n*** End")
    with pytest.raises(EditRefused) as refused:
        Applier(asked.get).apply_patch(PatchRequest(patch), {"a.py": FILE.encode(), "b.py": b"x = 1\n"}.get)
    assert [(reason.path, reason.code) for reason in refused.value.reasons] == [("a.py", "ambiguous")]
    assert asked.times == 0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose model is never loaded: whoever waits for it is told so."""
    root = tmp_path_factory.mktemp("root")
    (root / "a.py").write_text(FILE)
    with serving(None, root) as served:
        yield served


def of_http(url: str, edit: str) -> dict[str, Any]:
    answer = httpx.post(f"{url}/apply", json={"path": "a.py", "edit": edit, "write": True}, timeout=30)
    assert answer.status_code == 422
    problem: dict[str, Any] = answer.json()
    return problem["reasons"][0]


def of_stream(url: str, edit: str) -> dict[str, Any]:
    answer = httpx.post(f"{url}/apply", json={"path": "a.py", "edit": edit, "stream": True}, timeout=30)
    assert answer.status_code == 422
    problem: dict[str, Any] = answer.json()
    return problem["reasons"][0]


def of_batch(url: str, edit: str) -> dict[str, Any]:
    body = {"requests": [{"id": 1, "path": "a.py", "edit": edit}]}
    line: dict[str, Any] = httpx.post(f"{url}/apply/batch", json=body, timeout=30).json()
    assert line["status"] == 422
    return line["problem"]["reasons"][0]


def of_openai(url: str, edit: str) -> dict[str, Any]:
    message = f"<code>{FILE}</code>\n<update>{edit}</update>"
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        pytest.raises(openai.UnprocessableEntityError) as refused,
    ):
        client.chat.completions.create(model="auto", messages=[{"role": "user", "content": message}])
    assert isinstance(refused.value.body, dict)
    reason: dict[str, Any] = refused.value.body["hunk"]["reasons"][0]
    for told in (reason["reason"], reason["nearest"], reason["suggestion"]):
        assert told in str(refused.value), "many clients show the message only"
    return reason


def of_client(url: str, edit: str) -> dict[str, Any]:
    with Client(url) as client, pytest.raises(EditRefused) as refused:
        client.apply(request(edit))
    with Client(url) as client, client.session() as session, pytest.raises(EditRefused) as in_session:
        session.apply(edit, path="a.py", write=True)
    assert [reason.code for reason in in_session.value.reasons] == [reason.code for reason in refused.value.reasons]
    return {"code": refused.value.reasons[0].code, "suggestion": refused.value.reasons[0].suggestion}


def of_async_client(url: str, edit: str) -> dict[str, Any]:
    async def run() -> EditRefused:
        async with AsyncClient(url) as client:
            with pytest.raises(EditRefused) as refused:
                await client.apply(WorkspaceRequest(edit, "a.py"), write=True)
        return refused.value

    reason = anyio.run(run).reasons[0]
    return {"code": reason.code, "suggestion": reason.suggestion}


@pytest.mark.parametrize("door", [of_http, of_stream, of_batch, of_openai, of_client, of_async_client])
@pytest.mark.parametrize(("edits", "code"), [(AMBIGUOUS, "ambiguous"), (MISSING, "not_found")])
def test_every_door_refuses_before_the_model_is_there(
    url: str, door: Callable[[str, str], dict[str, Any]], edits: dict[str, str], code: str
) -> None:
    for name in AMBIGUOUS:
        reason = door(url, edits[name])
        assert reason["code"] == code
        assert reason["suggestion"]
    assert httpx.get(f"{url}/workspaces/default/files/a.py").json()["text"] == FILE


def test_a_client_of_this_process_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(local.ModelOnDemand, "get", lambda self: loaded.append(self.name))
    (tmp_path / "a.py").write_text(FILE)
    with LocalClient(tmp_path, watch=False) as client:
        for edit in (*AMBIGUOUS.values(), *MISSING.values()):
            with pytest.raises(EditRefused):
                client.apply(WorkspaceRequest(edit, "a.py"), write=True)
    assert not loaded
    assert (tmp_path / "a.py").read_text() == FILE
