"""A request says how sure its answer has to be: what is less sure is refused, and no model is loaded in vain.

What the rules make of the snippet is put in their place, so that these tests hold whatever the reader reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from agent_runtime import AsyncClient, Client, LocalClient, WorkspaceRequest, wiring
from agent_runtime.apply import pipeline as applier
from agent_runtime.apply.pipeline import Applier
from agent_runtime.certainty import CERTAINTIES, Certainty, describe_certainty, find_least_sure, find_surest, is_as_sure
from agent_runtime.client import local
from agent_runtime.errors import EditRefused, ModelUnavailable
from agent_runtime.llm.interface import ModelMerge, ModelOnDemand, ModelTask
from agent_runtime.mcp.backends import LocalBackend, make_local_applier
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.serialization import problem_from_json, problem_to_json
from agent_runtime.types import ApplyRequest, Options, PatchRequest, Usage
from editor import patch_set
from editor.types import AlreadyApplied, Candidate, Merged, MergeOutcome, Unresolved
from tests.agent_runtime.mcp.agents import called, served, text_of, values_of
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import hunk_here, serving

FILE = "def a():\n    return 1\n\n\ndef b():\n    return 2\n"
NEW = "def d():\n    return 4\n"
SNIPPET = f"# ... existing code ...\n\n{NEW}\n# ... existing code ...\n"
LAST, FIRST = f"{FILE}\n\n{NEW}", f"{NEW}\n\n{FILE}"
READINGS = (Candidate(LAST, 0.9, "new lines last", 0.974), Candidate(FIRST, 0.1, "new lines first", 0.02))
LIKELY = Merged(LAST, "anchored", 2, certainty="likely", confidence=0.974, candidates=READINGS)
READ = Merged(LAST, "anchored", 2, confidence=0.9991, candidates=READINGS)
OPEN = Unresolved("open_intent", "It may go to two places.", 2, "", "Show more lines.", READINGS)
PATCH = (
    "*** Begin Patch\n*** Update File: a.py\n@@\n-    return 1\n+    return 10\n"
    "*** Update File: b.py\n@@\n-x = 1\n+x = 2\n*** End Patch\n"
)


@dataclass
class Asked:
    """The place of a model that counts who comes for it."""

    merger: Any = None
    times: int = 0

    def get(self) -> Any:
        self.times += 1
        if self.merger is None:
            raise ModelUnavailable("there is no model in this test")
        return self.merger


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Callable[[MergeOutcome], None]:
    """Say what the rules make of every edit."""

    def make(outcome: MergeOutcome) -> None:
        monkeypatch.setattr(applier, "merge", lambda *arguments, **options: outcome)

    return make


@pytest.fixture
def likely(rules: Callable[[MergeOutcome], None]) -> None:
    rules(LIKELY)


@pytest.fixture
def undecided(rules: Callable[[MergeOutcome], None]) -> None:
    rules(OPEN)


def request(**options: Any) -> ApplyRequest:
    return ApplyRequest(FILE.encode(), SNIPPET, "a.py", **options)


def test_certainties_have_one_order() -> None:
    assert CERTAINTIES == ("certain", "likely", "scored", "model")
    for number, one in enumerate(CERTAINTIES):
        assert [is_as_sure(other, one) for other in CERTAINTIES] == [at <= number for at in range(4)]
    assert find_least_sure(["certain", "scored", "likely"]) == "scored"
    assert find_least_sure([]) == "certain"
    assert find_surest(["model", "likely"]) == "likely"


def test_a_confidence_is_never_rounded_up_in_words() -> None:
    assert (
        describe_certainty("likely", "anchored", 0.9999) == "as its likeliest reading (anchored), likely right (99 %)"
    )
    assert describe_certainty("scored", "model", 0.85) == "by the model, chosen and checked (85 %)"
    assert describe_certainty("certain", "exact", None) == "by rule (exact), certain"
    assert describe_certainty("model", "model", None) == "by the model, checked"


# The pipeline


@pytest.mark.parametrize("least", [None, "model", "scored", "likely"])
@pytest.mark.parametrize("mode", ["auto", "deterministic"])
def test_a_likely_reading_is_merged_without_a_model(likely: None, mode: Any, least: Certainty | None) -> None:
    asked = Asked()
    result = Applier(asked.get).apply(request(mode=mode, min_certainty=least))
    file = result.file
    assert (result.status, file.merged) == ("merged", LAST)
    assert (file.method, file.certainty, file.confidence, asked.times) == ("deterministic", "likely", 0.974, 0)


def test_a_likely_reading_is_refused_where_only_a_certain_one_will_do(likely: None) -> None:
    asked = Asked()
    with pytest.raises(EditRefused) as refused:
        Applier(asked.get).apply(request(min_certainty="certain", policy="lenient"))
    (reason,) = refused.value.reasons
    assert (reason.code, reason.num_candidates, asked.times) == ("uncertain", 2, 0)
    assert "likely reading (97 %)" in reason.reason
    assert "min_certainty 'certain'" in reason.reason
    assert [(one.why, one.confidence) for one in reason.candidates] == [
        ("new lines last", 0.974),
        ("new lines first", 0.02),
    ]
    assert all("+def d():" in one.diff for one in reason.candidates)
    again = problem_from_json(json.loads(json.dumps(problem_to_json(refused.value))))
    assert isinstance(again, EditRefused)
    assert again.reasons == refused.value.reasons


def test_a_likely_merge_without_its_readings_is_shown_itself(rules: Callable[[MergeOutcome], None]) -> None:
    rules(replace(LIKELY, candidates=()))
    with pytest.raises(EditRefused) as refused:
        Applier(Asked().get).apply(request(min_certainty="certain"))
    (reason,) = refused.value.reasons
    assert [one.confidence for one in reason.candidates] == [0.974]


def test_a_reading_above_the_strict_bar_is_certain_and_tells_its_confidence(
    rules: Callable[[MergeOutcome], None],
) -> None:
    rules(READ)
    file = Applier(Asked().get).apply(request(min_certainty="certain")).file
    assert (file.certainty, file.confidence) == ("certain", 0.9991)


def test_a_rule_has_no_confidence() -> None:
    edit = "<<<<<<< SEARCH\n    return 1\n=======\n    return 10\n>>>>>>> REPLACE\n"
    file = Applier(Asked().get).apply(ApplyRequest(FILE.encode(), edit, "a.py", min_certainty="certain")).file
    assert (file.certainty, file.confidence) == ("certain", None)


@pytest.mark.parametrize("least", ["certain", "likely"])
@pytest.mark.parametrize("options", [{}, {"mode": "model"}, {"decide": "generate"}, {"decide": "score"}], ids=str)
def test_no_model_is_come_for_that_cannot_be_sure_enough(
    undecided: None, least: Certainty, options: dict[str, Any]
) -> None:
    asked = Asked(ScriptedMerger(LAST, choice=0))
    with pytest.raises(EditRefused) as refused:
        Applier(asked.get).apply(request(min_certainty=least, **options))
    (reason,) = refused.value.reasons
    assert asked.times == 0
    assert (reason.code, len(reason.candidates)) == ("open_intent", 2)
    assert reason.reason == f"It may go to two places. No model was asked: min_certainty is '{least}'."


@pytest.mark.parametrize("mode", ["auto", "model"])
def test_a_model_that_may_not_write_may_choose(undecided: None, mode: Any) -> None:
    asked = Asked(ScriptedMerger("written", choice=0))
    file = Applier(asked.get).apply(request(mode=mode, min_certainty="scored")).file
    assert (file.merged, file.certainty, asked.times) == (LAST, "scored", 1)
    assert file.confidence == 0.3, "the share of the chosen reading in all weight"


@pytest.mark.parametrize(
    ("outcome", "options"),
    [
        (OPEN, {"decide": "generate"}),
        (replace(OPEN, candidates=()), {}),
        (READ, {"mode": "model"}),
        (AlreadyApplied("It stands there."), {"mode": "model"}),
    ],
    ids=["writes always", "nothing to choose from", "rules have decided", "done already"],
)
def test_no_model_is_come_for_that_could_only_write(
    rules: Callable[[MergeOutcome], None], outcome: MergeOutcome, options: dict[str, Any]
) -> None:
    rules(outcome)
    asked = Asked(ScriptedMerger(LAST, choice=0))
    with pytest.raises(EditRefused, match="No model was asked: min_certainty is 'scored'"):
        Applier(asked.get).apply(request(min_certainty="scored", **options))
    assert asked.times == 0
    assert Applier(asked.get).apply(request(**options)).file.method == "model", "but for that it is asked"


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "With min_certainty 'model' it writes the merge."),
        ({"decide": "score", "min_certainty": "scored"}, "min_certainty 'scored' refuses what it would write."),
    ],
    ids=["by default", "where it may not"],
)
def test_a_model_in_doubt_is_not_asked_to_write(undecided: None, options: dict[str, Any], advice: str) -> None:
    merger = ScriptedMerger(LAST, choice=None)
    with pytest.raises(EditRefused) as refused:
        Applier(lambda: merger).apply(request(**options))
    (reason,) = refused.value.reasons
    assert (reason.code, len(reason.candidates)) == ("open_intent", 2)
    assert "The model is sure of no reading" in reason.reason
    assert reason.reason.endswith(advice)
    assert merger.num_written == 0
    assert refused.value.usage == Usage(prompt=10, recomputed=10, forwards=1), "what it computed is not lost"


@pytest.mark.parametrize("options", [{"decide": "score"}, {"min_certainty": "model"}], ids=str)
def test_a_model_in_doubt_writes_where_it_is_asked_to(undecided: None, options: dict[str, Any]) -> None:
    made = Applier(lambda: ScriptedMerger(LAST, choice=None)).apply(request(**options))
    assert (made.file.certainty, made.file.merged) == ("model", LAST)


def test_what_a_model_wrote_all_the_same_is_refused(undecided: None) -> None:
    class Writer(ScriptedMerger):
        def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            return ModelMerge(LAST, False, Usage(), {})

    with pytest.raises(EditRefused, match="min_certainty 'scored'"):
        Applier(Writer).apply(request(min_certainty="scored"))


def test_all_files_are_refused_where_one_is_not_sure_enough(likely: None) -> None:
    requests = [request(min_certainty="certain"), replace(request(min_certainty="likely"), path="b.py")]
    with pytest.raises(EditRefused) as refused:
        Applier(Asked().get).apply_each(requests)
    assert [(reason.path, reason.code) for reason in refused.value.reasons] == [("a.py", "uncertain")]


def test_an_edit_of_several_files_is_held_to_it_file_by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = patch_set.merge

    def read(text: str, *arguments: Any) -> MergeOutcome:
        found = real(text, *arguments)
        assert isinstance(found, Merged)
        return replace(found, certainty="likely", confidence=0.98) if "def" in text else found

    monkeypatch.setattr(patch_set, "merge", read)
    files = {"a.py": FILE.encode(), "b.py": b"x = 1\n"}
    pipeline = Applier(Asked().get)
    with pytest.raises(EditRefused) as refused:
        pipeline.apply_patch(PatchRequest(PATCH, min_certainty="certain"), files.get)
    assert [(reason.path, reason.code) for reason in refused.value.reasons] == [("a.py", "uncertain")]
    made = pipeline.apply_patch(PatchRequest(PATCH, min_certainty="likely"), files.get)
    assert [(file.certainty, file.confidence) for file in made.files] == [("likely", 0.98), ("certain", None)]
    asked = Asked(ScriptedMerger(FILE))
    with pytest.raises(EditRefused, match="2 files"):
        Applier(asked.get).apply_patch(PatchRequest(PATCH, mode="model", min_certainty="likely"), files.get)
    assert asked.times == 0


# The doors: each gives the problem of a refusal, or what is told of the file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture
def file(root: Path) -> Path:
    path = root / "a.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    """A service whose model is never loaded: whoever waits for it is told so."""
    with serving(None, root) as served_at:
        yield served_at


def _post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{url}{path}", json=body, timeout=30).json()
    return answer


def over_http(url: str, root: Path, least: str) -> dict[str, Any]:
    return _post(url, "/apply", {"path": "a.py", "edit": SNIPPET, "min_certainty": least})


def over_a_stream(url: str, root: Path, least: str) -> dict[str, Any]:
    body = {"path": "a.py", "edit": SNIPPET, "min_certainty": least, "stream": True}
    answer = httpx.post(f"{url}/apply", json=body, timeout=30)
    if not answer.is_success:
        return dict(answer.json())
    return dict(json.loads(answer.text.rpartition("event: result\ndata: ")[2]))


def in_a_batch(url: str, root: Path, least: str) -> dict[str, Any]:
    line = _post(url, "/apply/batch", {"requests": [{"path": "a.py", "edit": SNIPPET, "min_certainty": least}]})
    return dict(line.get("problem") or line["result"])


def as_a_chat(url: str, root: Path, least: str) -> dict[str, Any]:
    message = {"role": "user", "content": f"<code>{FILE}</code>\n<update>{SNIPPET}</update>"}
    body = {"model": "auto", "messages": [message], "hunk": {"min_certainty": least}}
    answer = _post(url, "/v1/chat/completions", body)
    return dict(answer["error"]["hunk"] if "error" in answer else answer["hunk"])


def as_code_apply(url: str, root: Path, least: str) -> dict[str, Any]:
    body = {"initial_code": FILE, "edit_snippet": SNIPPET, "hunk": {"min_certainty": least}}
    answer = _post(url, "/v1/code/apply", body)
    return dict(answer["error"]["hunk"] if "error" in answer else answer["hunk"])


def _told(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        file = work().file
    except EditRefused as refused:
        return problem_to_json(refused)
    return {"certainty": file.certainty, "confidence": file.confidence, "merged": file.merged}


def by_client(url: str, root: Path, least: str) -> dict[str, Any]:
    with Client(url) as client:
        return _told(lambda: client.apply(request(min_certainty=least)))


def by_async_client(url: str, root: Path, least: str) -> dict[str, Any]:
    async def ask() -> Any:
        async with AsyncClient(url) as client:
            return await client.apply(WorkspaceRequest(SNIPPET, "a.py", min_certainty=least))  # type: ignore[arg-type]

    return _told(lambda: anyio.run(ask))


def in_a_session(url: str, root: Path, least: str) -> dict[str, Any]:
    with Client(url) as client, client.session() as session:
        return _told(lambda: session.apply(SNIPPET, path="a.py", min_certainty=least))  # type: ignore[arg-type]


def in_this_process(url: str, root: Path, least: str) -> dict[str, Any]:
    with LocalClient(root, watch=False) as client:
        return _told(lambda: client.apply(WorkspaceRequest(SNIPPET, "a.py", min_certainty=least)))  # type: ignore[arg-type]


def on_the_command_line(url: str, root: Path, least: str) -> dict[str, Any]:
    arguments = ("apply", root / "a.py", "--edit", "-", "--json", "--min-certainty", least)
    return dict(json.loads(hunk_here(*arguments, stdin=SNIPPET).stdout))


def by_an_agent(url: str, root: Path, least: str) -> dict[str, Any]:
    with served(LocalBackend(root, make_local_applier(ModelOnDemand("none", Asked().get)))) as mcp:
        answer = values_of(
            called(mcp, "edit_file", path="a.py", instruction="", edit=SNIPPET, dry_run=True, min_certainty=least)
        )
    return dict(answer)


DOORS = [
    over_http,
    over_a_stream,
    in_a_batch,
    as_a_chat,
    as_code_apply,
    by_client,
    by_async_client,
    in_a_session,
    in_this_process,
    on_the_command_line,
    by_an_agent,
]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were to be loaded in this process."""
    names: list[str] = []

    def load(name: str, *arguments: object) -> None:
        names.append(name)
        raise ModelUnavailable("no model in this test")

    monkeypatch.setattr(wiring, "open_merger", load)
    monkeypatch.setattr(local.ModelOnDemand, "get", lambda self: load(self.name))
    return names


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_what_is_less_sure_and_gives_what_is_sure_enough(
    url: str, root: Path, file: Path, loaded: list[str], likely: None, door: Callable[[str, Path, str], dict[str, Any]]
) -> None:
    refused = door(url, root, "certain")
    (reason,) = refused["reasons"]
    assert reason["code"] == "uncertain"
    assert [one["confidence"] for one in reason["candidates"]] == [0.974, 0.02]
    merged = door(url, root, "likely")
    assert (merged["certainty"], merged["confidence"]) == ("likely", 0.974)
    assert not loaded
    assert file.read_text() == FILE


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_before_a_model_is_loaded_that_could_not_be_sure_enough(
    url: str, root: Path, file: Path, loaded: list[str], undecided: None, door: Callable[[str, Path, str], Any]
) -> None:
    (reason,) = door(url, root, "likely")["reasons"]
    assert (reason["code"], len(reason["candidates"])) == ("open_intent", 2)
    assert "No model was asked: min_certainty is 'likely'." in reason["reason"]
    assert not loaded


@pytest.mark.parametrize("least", ["sure", "", 1, ["certain"]])
def test_a_certainty_that_there_is_not_is_refused_by_name(url: str, file: Path, least: Any) -> None:
    answer = httpx.post(f"{url}/apply", json={"path": "a.py", "edit": SNIPPET, "min_certainty": least})
    assert (answer.status_code, answer.json()["field"]) == (400, "min_certainty")


def test_a_usage_error_on_the_command_line(file: Path) -> None:
    assert hunk_here("apply", file, "--edit", "-", "--min-certainty", "sure", stdin=SNIPPET).exit_code == 2


# What is written before anybody has seen it


def test_a_service_writes_no_models_merge_unless_it_is_asked_to(root: Path, file: Path, undecided: None) -> None:
    body = {"path": "a.py", "edit": SNIPPET}
    with serving(ScriptedMerger(LAST), root) as at:
        assert _post(at, "/apply", body)["certainty"] == "model", "whoever has the text may look at it"
        refused = _post(at, "/apply", body | {"write": True})
        assert "min_certainty is 'likely'" in refused["reasons"][0]["reason"]
        assert file.read_text() == FILE
        for asking in ({"min_certainty": "model"}, {"mode": "model"}):
            answer = _post(at, "/apply", body | {"write": True} | asking)
            assert (answer["written"], answer["certainty"]) == (True, "model")
            assert file.read_text() == LAST
            file.write_text(FILE)
        with Client(at) as client:
            with pytest.raises(EditRefused):
                client.apply(WorkspaceRequest(SNIPPET, "a.py"), write=True)
            with client.session() as session:
                assert session.apply(SNIPPET, path="a.py").file.certainty == "model"
                with pytest.raises(EditRefused):
                    session.apply(SNIPPET, path="a.py", write=True)
                assert file.read_text() == FILE
                assert session.apply(SNIPPET, path="a.py", write=True, min_certainty="model").written
    assert file.read_text() == LAST


def test_a_service_writes_a_likely_merge(url: str, file: Path, likely: None) -> None:
    assert _post(url, "/apply", {"path": "a.py", "edit": SNIPPET, "write": True})["written"]
    assert file.read_text() == LAST


def test_the_command_line_writes_what_its_model_made_and_says_so(
    file: Path, undecided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    merger = ScriptedMerger(LAST)
    monkeypatch.setattr(wiring, "open_merger", lambda *arguments: merger)
    done = hunk_here("apply", file, "--edit", "-", "--write", stdin=SNIPPET)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("merged by the model, checked; written\n")
    assert file.read_text() == LAST


def test_the_command_line_says_what_is_likely_and_lists_the_readings(file: Path, likely: None) -> None:
    done = hunk_here("apply", file, "--edit", "-", stdin=SNIPPET)
    assert done.stderr == "merged as its likeliest reading (anchored), likely right (97 %); not written; --write does\n"
    refused = hunk_here("apply", file, "--edit", "-", "--min-certainty", "certain", stdin=SNIPPET)
    assert refused.exit_code == 3
    assert "1. new lines last (97 % sure)" in refused.stderr


def _agent(root: Path, options: Options | None, merger: ScriptedMerger, **arguments: Any) -> Any:
    backend = LocalBackend(root, make_local_applier(ModelOnDemand("scripted", lambda: merger)), options=options)
    with served(backend) as at:
        return called(at, "edit_file", path="a.py", instruction="", edit=SNIPPET, **arguments)


def test_an_agent_gets_no_models_merge_unless_the_server_is_started_so(root: Path, file: Path, undecided: None) -> None:
    merger = ScriptedMerger(LAST)
    for arguments in ({}, {"min_certainty": "model"}, {"min_certainty": "scored"}):
        refused = _agent(root, None, merger, **arguments)
        assert refused.is_error
        assert "min_certainty is 'likely'" in text_of(refused)
        assert "reading 1: new lines last (97 % sure)" in text_of(refused)
    allowed = Options(min_certainty="model")
    assert _agent(root, allowed, merger, min_certainty="likely").is_error, "an agent may ask for more"
    assert not merger.seen
    assert file.read_text() == FILE
    made = _agent(root, allowed, merger)
    assert (values_of(made)["certainty"], values_of(made)["confidence"]) == ("model", None)
    assert file.read_text() == LAST


def test_an_agent_is_told_that_a_merge_is_likely(root: Path, file: Path, likely: None) -> None:
    refused = _agent(root, None, ScriptedMerger(), min_certainty="certain")
    assert refused.is_error
    assert "reading 1: new lines last (97 % sure)" in text_of(refused)
    assert file.read_text() == FILE
    made = _agent(root, None, ScriptedMerger())
    assert "merged as its likeliest reading (anchored), likely right (97 %); written" in text_of(made)
    assert file.read_text() == LAST


def test_likely_merges_are_counted_apart(url: str, file: Path, likely: None) -> None:
    _post(url, "/apply", {"path": "a.py", "edit": SNIPPET})
    counts = httpx.get(f"{url}/metrics").text
    assert 'hunk_edits_total{certainty="likely",method="deterministic"}' in counts
