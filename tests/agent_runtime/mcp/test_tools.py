"""The MCP tools: edits and files as agents get them, refusals, arguments, progress, cancellation."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession
from mcp_types import CallToolResult

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.rule_process import RuleProcesses
from agent_runtime.client import Client
from agent_runtime.errors import ModelUnavailable
from agent_runtime.llm.interface import ModelOnDemand
from agent_runtime.mcp import tools
from agent_runtime.mcp.answers import MAX_READ_CHARACTERS, read_response
from agent_runtime.mcp.backends import (
    Backend,
    BackendStatus,
    EditApplier,
    LocalBackend,
    RemoteBackend,
    make_local_applier,
    make_remote_applier,
)
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, ApplyResult, Mode, Options
from agent_runtime.workspace.history import History
from tests.agent_runtime.mcp.agents import asking, called, over_http, served, text_of, values_of
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving

BLOCK = "<<<<<<< SEARCH\ntimeout_seconds = 10\n=======\ntimeout_seconds = 20\n>>>>>>> REPLACE\n"
SNIPPET = "# ... existing code ...\ntimeout = 11\n"
"""An edit that no rule decides."""

SECRET = "timeout_seconds = 10\n"
TEXT = "timeout_seconds = 10\nretries = 2\n"
BY_MODEL = Options(min_certainty="model")
"""Options of a server that lets a model decide."""

EDIT = {"instruction": "Raise the limit.", "edit": BLOCK}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside") / "root"


@pytest.fixture
def root(folder: Path) -> Path:
    """Reset the folder's files before each test; the folder itself stays, as servers have it open."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    (folder / "src").mkdir()
    (folder / "src" / "limits.py").write_text(TEXT)
    (folder.parent / "secret.py").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def scripted() -> ScriptedMerger:
    return ScriptedMerger()


@pytest.fixture
def merger(scripted: ScriptedMerger) -> ScriptedMerger:
    scripted.text, scripted.hold, scripted.tells_text = TEXT.replace("10", "30"), None, True
    scripted.cancelled.clear()
    return scripted


@pytest.fixture(scope="module")
def here(folder: Path, scripted: ScriptedMerger) -> Iterator[str]:
    """A server for a folder whose edits are merged in this process."""
    folder.mkdir(exist_ok=True)
    backend = LocalBackend(folder, make_local_applier(ModelOnDemand("scripted", lambda: scripted)), options=BY_MODEL)
    with served(backend) as url:
        yield url


@pytest.fixture(scope="module")
def others(folder: Path, scripted: ScriptedMerger) -> Iterator[dict[str, str]]:
    """Servers for the same files, merged by a service, and in a workspace of a service."""
    folder.mkdir(exist_ok=True)
    with serving(scripted, folder) as service:
        by_service = LocalBackend(folder, make_remote_applier(Client(service), service), options=BY_MODEL)
        of_service = RemoteBackend(Client(service), service, options=BY_MODEL)
        with served(by_service) as first, served(of_service) as second:
            yield {"merged by a service": first, "had from a service": second}


@pytest.fixture(params=["merged here", "merged by a service", "had from a service"])
def url(request: pytest.FixtureRequest, here: str, others: dict[str, str], root: Path, merger: ScriptedMerger) -> str:
    """The same files through every backend: an agent sees no difference."""
    return others.get(request.param, here)


def test_an_edit_is_merged_checked_and_written(url: str, root: Path) -> None:
    result = called(url, "edit_file", path="src/limits.py", **EDIT)
    assert not result.is_error
    after = TEXT.replace("10", "20")
    assert (root / "src" / "limits.py").read_text() == after
    answer = values_of(result)
    assert (answer["status"], answer["written"], answer["method"], answer["certainty"]) == (
        "merged",
        True,
        "deterministic",
        "certain",
    )
    assert answer["sha256_before"] == sha256(TEXT.encode()).hexdigest()
    assert answer["sha256"] == sha256(after.encode()).hexdigest()
    assert all(check["ok"] for check in answer["checks"])
    assert "+timeout_seconds = 20" in answer["diff"]
    assert answer["diff"].rstrip("\n") in text_of(result)
    assert answer["sha256"] in text_of(result)

    again = called(url, "edit_file", path="src/limits.py", **EDIT)
    assert not again.is_error
    assert (values_of(again)["status"], values_of(again)["written"]) == ("noop", False)
    assert values_of(again)["sha256"] == answer["sha256"]


def test_a_dry_run_writes_nothing(url: str, root: Path) -> None:
    result = called(url, "edit_file", path="src/limits.py", dry_run=True, **EDIT)
    answer = values_of(result)
    assert (answer["status"], answer["written"]) == ("merged", False)
    assert answer["sha256"] == sha256(TEXT.encode()).hexdigest()
    assert "+timeout_seconds = 20" in text_of(result)
    assert (root / "src" / "limits.py").read_text() == TEXT


def test_the_hash_of_what_was_read_guards_the_edit(url: str, root: Path) -> None:
    read = values_of(called(url, "read_file", path="src/limits.py"))
    assert (read["text"], read["num_lines"], read["truncated"]) == (TEXT, 2, False)
    (root / "src" / "limits.py").write_text("timeout_seconds = 10\nretries = 3\n")
    stale = called(url, "edit_file", path="src/limits.py", expected_sha256=read["sha256"], **EDIT)
    assert stale.is_error
    now = sha256(b"timeout_seconds = 10\nretries = 3\n").hexdigest()
    assert now in text_of(stale)
    assert "read it again" in text_of(stale)
    assert (root / "src" / "limits.py").read_text() == "timeout_seconds = 10\nretries = 3\n"
    assert not called(url, "edit_file", path="src/limits.py", expected_sha256=now, **EDIT).is_error


def test_a_refused_edit_tells_why_and_what_to_send(url: str, root: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-a\n+b\n*** Update File: b.py\n@@\n-a\n+b\n*** End Patch\n"
    refused = called(url, "edit_file", path="src/limits.py", instruction="", edit=patch)
    assert refused.is_error
    assert values_of(refused)["reasons"][0]["code"] == "several_files"
    assert "The edit is for 2 files: a.py, b.py" in text_of(refused)
    assert "Call edit_files with this edit" in text_of(refused)
    assert (root / "src" / "limits.py").read_text() == TEXT


def test_without_a_model_it_tells_what_is_nearest(root: Path) -> None:
    def load() -> ScriptedMerger:
        raise ModelUnavailable("smollm2 is not here: run `hunk models pull smollm2`")

    with served(LocalBackend(root, make_local_applier(ModelOnDemand("smollm2", load)), options=BY_MODEL)) as url:
        refused = called(url, "edit_file", path="src/limits.py", instruction="", edit=SNIPPET)
    assert refused.is_error
    for told in ("hunk models pull smollm2", "no rule decides", "+timeout = 11", "Send SEARCH/REPLACE blocks"):
        assert told in text_of(refused)


@pytest.mark.parametrize("mode", ["auto", "deterministic", "model"])
@pytest.mark.parametrize(
    ("old", "told"),
    [
        ("timeout = 10", ("in 3 places: lines 2", "reading 3: ", "until only one")),
        ("timeout = 11", ("not", "is nearest (", "from the file as it is now")),
    ],
    ids=["ambiguous", "missing"],
)
def test_no_model_is_asked_where_an_edit_quotes_what_has_no_place_or_several(
    root: Path, mode: Mode, old: str, told: tuple[str, ...]
) -> None:
    text = "".join(f"def {name}():\n    timeout = 10\n    return timeout\n\n\n" for name in "abc")
    (root / "three.py").write_text(text)
    edits = [
        json.dumps({"old_string": old, "new_string": "timeout = 30"}),
        f"<<<<<<< SEARCH\n    {old}\n=======\n    timeout = 30\n>>>>>>> REPLACE\n",
        f"@@\n-    {old}\n+    timeout = 30\n",
        f"*** Begin Patch\n*** Update File: three.py\n@@\n-    {old}\n+    timeout = 30\n*** End Patch\n",
    ]
    asked: list[str] = []

    def load() -> ScriptedMerger:
        asked.append("the model")
        raise ModelUnavailable("no model in this test")

    backend = LocalBackend(root, make_local_applier(ModelOnDemand("counted", load)), options=Options(mode=mode))
    with served(backend) as url:
        answers = [called(url, "edit_file", path="three.py", instruction="Wait longer.", edit=edit) for edit in edits]
    for answer in answers:
        assert answer.is_error
        assert all(part in text_of(answer) for part in told), text_of(answer)
    assert not asked
    assert (root / "three.py").read_text() == text


def test_what_leads_out_of_the_root_is_refused(url: str, root: Path) -> None:
    (root / "link.py").symlink_to(root.parent / "secret.py")
    (root / "outside").symlink_to(root.parent)
    paths = ["../secret.py", "src/../../secret.py", "link.py", "/etc/hostname", "outside/secret.py"]

    async def work(session: ClientSession) -> list[CallToolResult]:
        calls = [("read_file", {"path": path}) for path in paths]
        calls += [("edit_file", {"path": path, **EDIT}) for path in paths]
        return [await session.call_tool(tool, arguments) for tool, arguments in calls]

    for result in asking(url, work):
        assert result.is_error
        assert re.search("leads out of the root|is absolute; give it relative to the root", text_of(result))
    assert (root.parent / "secret.py").read_text() == SECRET


def test_a_file_that_is_not_there_or_is_no_text(url: str, root: Path) -> None:
    (root / "image").write_bytes(b"\x89PNG\0\0")
    faults = {"none.py": "there is no file", "src": "src is a directory", "image": "image"}

    async def work(session: ClientSession) -> list[tuple[str, CallToolResult]]:
        read = [(says, await session.call_tool("read_file", {"path": path})) for path, says in faults.items()]
        edits = [(says, {"path": path, **EDIT}) for path, says in faults.items()]
        return read + [(says, await session.call_tool("edit_file", edit)) for says, edit in edits]

    for says, result in asking(url, work):
        assert result.is_error
        assert says in text_of(result)


def test_the_status_tells_where_the_files_are_and_who_merges(url: str, root: Path) -> None:
    status = values_of(called(url, "workspace_status"))
    assert str(root) in (status["root"], status["details"].get("root"))
    assert status["model_state"] in ("loaded", "loaded when needed")


def test_what_the_tools_may_do_is_told_to_the_client(here: str) -> None:
    async def ask(session: ClientSession) -> tuple[object, ...]:
        return (await session.list_tools()).tools, session.initialize_result

    listed, begun = asking(here, ask)
    hints = {tool.name: tool.annotations for tool in listed}  # type: ignore[attr-defined]
    assert set(hints) == {"edit_file", "edit_files", "read_file", "undo_edit", "workspace_status"}
    assert {name for name, hint in hints.items() if hint.read_only_hint} == {"read_file", "workspace_status"}
    assert hints["edit_file"].destructive_hint
    assert all(tool.description for tool in listed)  # type: ignore[attr-defined]
    schemas = [tool.output_schema for tool in listed]  # type: ignore[attr-defined]
    assert schemas == [None] * len(listed), "clients give a model the values of a schema instead of the text"  # type: ignore[arg-type]
    required = {tool.name: tool.input_schema.get("required", []) for tool in listed}  # type: ignore[attr-defined]
    assert required["edit_file"] == ["path", "instruction", "edit"]
    assert required["edit_files"] == ["instruction", "edit"]
    assert required["read_file"] == ["path"]
    assert required["undo_edit"] == required["workspace_status"] == []
    assert "expected_sha256" in begun.instructions  # type: ignore[attr-defined]


def test_an_absolute_path_inside_the_root_is_taken(here: str, root: Path) -> None:
    (root.parent / "other name").symlink_to(root)
    assert values_of(called(here, "read_file", path=str(root / "src" / "limits.py")))["path"] == "src/limits.py"
    assert not called(here, "edit_file", path=str(root / "src" / "limits.py"), **EDIT).is_error


WRONG = [
    ("edit_file", {"path": "a", "edit": "x"}, "instruction", "edit_file needs the argument 'instruction': the purpose"),
    (
        "edit_file",
        {"path": "a", "instruction": "x"},
        "edit",
        "needs the argument 'edit': what changes, in one",
    ),
    ("edit_file", {}, "path", "edit_file needs the argument 'path': the file, relative to"),
    ("edit_file", {"path": 1, **EDIT}, "path", "is wrong: input should be a valid string."),
    ("edit_file", {"path": "a", **EDIT, "expected_sha256": "abc"}, "expected_sha256", "string should match pattern"),
    (
        "edit_file",
        {"path": "a", **EDIT, "min_certainty": "low"},
        "min_certainty",
        "'likely', 'scored' or 'model'",
    ),
    (
        "edit_file",
        {"path": "a", **EDIT, "dry_run": "maybe"},
        "dry_run",
        "(show the diff and write nothing)",
    ),
    ("read_file", {"path": "a", "start_line": 0}, "start_line", "(the first line, from 1) is wrong: input should"),
]


@pytest.mark.parametrize(("tool", "arguments", "name", "says"), WRONG)
def test_wrong_arguments_are_named_with_what_to_send(
    here: str, tool: str, arguments: dict[str, object], name: str, says: str
) -> None:
    answer = called(here, tool, **arguments)
    assert answer.is_error
    assert says in text_of(answer)
    assert f"'{name}'" in text_of(answer)
    assert "pydantic" not in text_of(answer)
    assert "\n" not in text_of(answer)


def test_a_merge_that_a_check_rejects_is_an_error_and_not_written(
    here: str, root: Path, merger: ScriptedMerger
) -> None:
    merger.text = "# ... existing code ...\n"
    result = called(here, "edit_file", path="src/limits.py", instruction="", edit=SNIPPET)
    assert result.is_error
    assert values_of(result)["status"] == "rejected"
    assert "marker_leak" in text_of(result)
    assert (root / "src" / "limits.py").read_text() == TEXT


def test_a_call_that_is_given_up_is_stopped_and_writes_nothing(
    url: str, root: Path, merger: ScriptedMerger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "REPORT_EVERY_SECONDS", 0.01)
    merger.hold = threading.Event()
    told: list[str | None] = []

    async def run() -> None:
        async with over_http(url) as session:
            with anyio.CancelScope() as scope:

                async def heard(progress: float, total: float | None, message: str | None) -> None:
                    told.append(message)
                    if message is not None and message.endswith("tokens written"):
                        scope.cancel()

                edit = {"path": "src/limits.py", "instruction": "", "edit": SNIPPET}
                await session.call_tool("edit_file", edit, progress_callback=heard)
            await anyio.to_thread.run_sync(merger.cancelled.wait, 10)

    try:
        anyio.run(run)
    finally:
        merger.hold.set()
    assert merger.cancelled.is_set()
    assert told
    assert (root / "src" / "limits.py").read_text() == TEXT


def test_edits_of_one_file_at_once_lose_nothing(here: str, root: Path) -> None:
    names = [f"name{number}" for number in range(8)]
    (root / "many.py").write_text("".join(f"{name} = 0\n" for name in names))

    async def work(session: ClientSession) -> list[CallToolResult]:
        results: list[CallToolResult] = []

        async def edit(name: str) -> None:
            block = BLOCK.replace("timeout_seconds = 10", f"{name} = 0").replace("timeout_seconds = 20", f"{name} = 1")
            results.append(await session.call_tool("edit_file", {"path": "many.py", "instruction": "", "edit": block}))

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(edit, name)
        return results

    results = asking(here, work)
    written = [result for result in results if not result.is_error]
    assert all("its sha256 is now" in text_of(result) for result in results if result.is_error)
    assert (root / "many.py").read_text().count(" = 1\n") == len(written) >= 1


def test_edits_by_rule_take_turns(root: Path) -> None:
    """One agent's edits run two at a time, as in the service; the third starts when one has ended."""
    begun, go = threading.Semaphore(0), threading.Event()
    at_once: list[int] = []
    applier = Applier(ModelOnDemand("scripted", ScriptedMerger).get)

    def apply(request: ApplyRequest, context: RequestContext, progress: ProgressListener) -> ApplyResult:
        at_once.append(1)
        begun.release()
        assert go.wait(30)
        at_once.pop()
        return applier.apply(request, context, progress)

    one = EditApplier(apply, applier.apply_patch, lambda: BackendStatus(model_state=""), lambda: None)
    backend = LocalBackend(root, one, options=BY_MODEL)

    async def three(session: ClientSession) -> int:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(session.call_tool, "edit_file", EDIT | {"path": "src/limits.py", "dry_run": True})
            for _ in range(2):
                await anyio.to_thread.run_sync(begun.acquire)
            assert text_of(await session.call_tool("read_file", {"path": "src/limits.py"})), "reading waits for nobody"
            num_begun = len(at_once)
            go.set()
        return num_begun + len(at_once)

    with served(backend) as url:
        assert asking(url, three) == 2
    assert begun.acquire(blocking=False)


def test_large_edits_are_worked_on_aside(root: Path) -> None:
    (root / "large.py").write_text(TEXT + "# more\n" * 100)
    aside = RuleProcesses(10.0, large_bytes=500)
    backend = LocalBackend(root, make_local_applier(ModelOnDemand("scripted", ScriptedMerger), aside), options=BY_MODEL)
    with served(backend) as url:
        for path, num_processes in (("src/limits.py", 0), ("large.py", 1)):
            assert not called(url, "edit_file", **EDIT, path=path).is_error
            assert len(aside._idle) == num_processes
    assert not aside._idle, "they end with the server"


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    return LocalBackend(tmp_path, make_local_applier(ModelOnDemand("scripted", ScriptedMerger)))


def read(backend: Backend, start_line: int | None = None, end_line: int | None = None) -> dict[str, Any]:
    result = read_response(backend.read("file"), start_line, end_line)
    assert not result.is_error
    answer: dict[str, Any] = values_of(result)
    shown, about = (content.text for content in result.content if content.type == "text")
    assert shown == answer["text"]
    assert answer["sha256"] in about
    assert (f"start_line {answer['last_line'] + 1}" in about) == answer["truncated"]
    return answer


@pytest.mark.parametrize(
    ("start_line", "end_line", "text"),
    [
        (None, None, "a\nb\nc\n"),
        (2, None, "b\nc\n"),
        (None, 1, "a\n"),
        (2, 2, "b\n"),
        (3, 99, "c\n"),
        (4, None, ""),
        (3, 1, ""),
    ],
)
def test_lines_of_a_file(
    backend: Backend, tmp_path: Path, start_line: int | None, end_line: int | None, text: str
) -> None:
    (tmp_path / "file").write_bytes(b"a\nb\nc\n")
    answer = read(backend, start_line, end_line)
    assert (answer["text"], answer["num_lines"], answer["truncated"]) == (text, 3, False)
    assert answer["sha256"] == sha256(b"a\nb\nc\n").hexdigest()


@pytest.mark.parametrize("text", ["a\r\nb", "a\r\nb\r\n", "\ufeffa\n", "", "\n", "ä\n", "a\rb\x0cc\u2028d"])
def test_line_ends_and_marks_stay_as_they_are(backend: Backend, tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_bytes(text.encode())
    assert read(backend)["text"] == text


def test_other_encodings_are_read_as_text(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("é\n".encode("utf-16"))
    answer = read(backend)
    assert (answer["text"], answer["encoding"]) == ("\ufeffé\n", "utf-16-le")


@pytest.mark.parametrize("ending", ["\n", ""])
def test_a_long_file_is_read_in_parts_that_add_up(backend: Backend, tmp_path: Path, ending: str) -> None:
    text = "\n".join(f"{number:06} {'x' * 90}" for number in range(6000)) + ending
    (tmp_path / "file").write_text(text)
    parts: list[str] = []
    line, more = 1, True
    while more:
        answer = read(backend, line)
        parts.append(answer["text"])
        assert answer["first_line"] == line
        line, more = answer["last_line"] + 1, answer["truncated"]
    assert len(parts) == -(-len(text) // MAX_READ_CHARACTERS) == 3
    assert "".join(parts) == text


def test_an_edit_is_undone_and_a_changed_file_is_left(root: Path, tmp_path: Path) -> None:
    applier = make_local_applier(ModelOnDemand("none", lambda: ScriptedMerger()))
    backend = LocalBackend(root, applier, history=History(tmp_path / "history"))
    with served(backend) as url:
        assert called(url, "undo_edit").is_error
        edited = called(url, "edit_file", path="src/limits.py", **EDIT)
        done = called(url, "undo_edit", id=values_of(edited)["write_id"])
        assert text_of(done).split("\n")[0] == "put back src/limits.py"
        assert values_of(done)["id"] in text_of(done)
        assert (root / "src" / "limits.py").read_text() == TEXT
        assert not called(url, "undo_edit", id=values_of(done)["id"]).is_error
        (root / "src" / "limits.py").write_text("mine\n")
        assert called(url, "undo_edit").is_error
    assert (root / "src" / "limits.py").read_text() == "mine\n"


PATCH = """*** Begin Patch
*** Update File: src/limits.py
-timeout_seconds = 10
+timeout_seconds = 20
*** Add File: src/new/one.py
+x = 1
*** Delete File: gone.py
*** Update File: old.py
*** Move to: moved.py
-c = 1
+c = 2
*** End Patch
"""


def put_more_files(root: Path) -> dict[str, str]:
    for name, text in {"gone.py": "g = 1\n", "old.py": "c = 1\n"}.items():
        (root / name).write_text(text)
    return texts_below(root)


def texts_below(root: Path) -> dict[str, str]:
    return {file.relative_to(root).as_posix(): file.read_text() for file in sorted(root.rglob("*")) if file.is_file()}


def test_several_files_are_edited_created_deleted_and_moved_or_none_is(url: str, root: Path) -> None:
    before = put_more_files(root)
    dry = called(url, "edit_files", instruction="", edit=PATCH, dry_run=True)
    assert not dry.is_error
    assert not values_of(dry)["written"]
    assert texts_below(root) == before
    done = called(url, "edit_files", instruction="", edit=PATCH)
    assert [file["action"] for file in values_of(done)["files"]] == ["update", "create", "delete", "move"]
    assert (values_of(done)["status"], values_of(done)["written"]) == ("merged", True)
    after = {"src/limits.py": TEXT.replace("10", "20"), "src/new/one.py": "x = 1\n", "moved.py": "c = 2\n"}
    assert texts_below(root) == after
    for told in ("src/new/one.py: created; written", "gone.py: deleted; written", "old.py -> moved.py: merged by rule"):
        assert told in text_of(done)
    refused = called(url, "edit_files", instruction="", edit=PATCH.replace("x = 1", "x = 2"))
    assert refused.is_error
    assert all(f"\n{name}: " in text_of(refused) for name in ("gone.py", "src/new/one.py"))
    assert texts_below(root) == after


def test_hashes_in_the_answer_are_those_on_the_disk(url: str, root: Path) -> None:
    put_more_files(root)
    done = called(url, "edit_files", instruction="", edit=PATCH)
    for file in values_of(done)["files"]:
        path = root / (file["move_to"] or file["path"])
        assert file["sha256"] == (sha256(path.read_bytes()).hexdigest() if path.exists() else "")


def test_all_files_of_an_edit_are_undone_together(root: Path, tmp_path: Path) -> None:
    before = put_more_files(root)
    applier = make_local_applier(ModelOnDemand("none", lambda: ScriptedMerger()))
    with served(LocalBackend(root, applier, history=History(tmp_path / "history"))) as url:
        done = called(url, "edit_files", instruction="", edit=PATCH)
        undone = called(url, "undo_edit", id=values_of(done)["write_id"])
    assert not undone.is_error
    assert texts_below(root) == before


def test_what_an_answer_says_to_call_instead_can_be_called(url: str, root: Path) -> None:
    put_more_files(root)
    missing = called(url, "edit_file", path="src/new/one.py", instruction="", edit="x = 1\n")
    assert "edit_files creates a file: a V4A patch with '*** Add File: PATH'" in text_of(missing)
    created = called(url, "edit_files", instruction="", edit="--- /dev/null\n+++ b/two.py\n@@ -0,0 +1 @@\n+y = 1\n")
    assert (created.is_error, (root / "two.py").read_text()) == (False, "y = 1\n")
    several = called(url, "edit_file", path="old.py", instruction="", edit=PATCH.replace("old.py", "moved.py"))
    assert text_of(several).endswith(
        "Call edit_files with this edit, which is then applied to all files that it names."
    )
    deletes = "*** Begin Patch\n*** Delete File: gone.py\n*** End Patch\n"
    alone = called(url, "edit_file", path="gone.py", instruction="", edit=deletes)
    assert text_of(alone).endswith("Call edit_files with this edit.")
    assert not called(url, "edit_files", instruction="", edit=deletes).is_error
    assert not (root / "gone.py").exists()
    create = "*** Begin Patch\n*** Add File: old.py\n+d = 1\n*** End Patch\n"
    there = called(url, "edit_file", path="old.py", instruction="", edit=create)
    assert text_of(there).endswith("Send an edit that updates the file: SEARCH/REPLACE blocks, or a diff.")
    update = "<<<<<<< SEARCH\nc = 1\n=======\nd = 1\n>>>>>>> REPLACE\n"
    assert not called(url, "edit_file", path="old.py", instruction="", edit=update).is_error


def test_no_suggestion_names_what_an_agent_cannot_send(url: str, root: Path) -> None:
    put_more_files(root)
    edits = [PATCH, PATCH.replace("old.py", "other.py"), "*** Begin Patch\n*** Delete File: old.py\n*** End Patch\n"]
    answers = [called(url, "edit_file", path="old.py", instruction="", edit=edit) for edit in edits]
    for answer in answers:
        assert answer.is_error
        for word in ("give no file", "beside the edit", "format '", "markers", "mode '"):
            assert word not in text_of(answer).lower()


def test_an_edit_of_a_file_that_has_changed_since_is_merged_where_its_base_is_named(url: str, root: Path) -> None:
    file, text = root / "src" / "limits.py", TEXT + "\n\ndef load():\n    return 1\n"
    file.write_text(text)
    base = values_of(called(url, "read_file", path="src/limits.py"))["sha256"]
    file.write_text(text.replace("return 1", "return 2"))
    done = called(url, "edit_file", path="src/limits.py", base_sha256=base, **EDIT)
    assert file.read_text() == text.replace("return 1", "return 2").replace("seconds = 10", "seconds = 20")
    assert (done.is_error, values_of(done)["base_sha256"]) == (False, base)
    assert "the file has changed since: merged three-way; written" in text_of(done)
    file.write_text(text.replace("seconds = 10", "seconds = 11"))
    refused = called(url, "edit_file", path="src/limits.py", base_sha256=base, **EDIT)
    assert "in the same lines as the edit: line 1" in text_of(refused)
    assert text_of(refused).endswith("Call read_file again, and send an edit of the text that it returns.")
    unknown = called(url, "edit_file", path="src/limits.py", base_sha256="0" * 64, **EDIT)
    assert (unknown.is_error, "which is not known here; read it again" in text_of(unknown)) == (True, True)
