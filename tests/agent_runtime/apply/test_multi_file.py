"""Edits of several files: all or none, one entry a file; a model is only asked about single updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NoReturn

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import BadRequest, Cancelled, EditRefused, ModelFailed, ModelUnavailable
from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.request_context import (
    MAX_CONCURRENT_FILES,
    NO_PROGRESS,
    Piece,
    ProgressListener,
    RequestContext,
    run_concurrently,
)
from agent_runtime.types import AnswerTrace, ApplyRequest, ApplyResult, PatchRequest, Usage
from editor import execution
from editor.execution import check_stopped
from tests.agent_runtime.scripted import ScriptedMerger

FILES = {
    "src/a.py": b"import os\r\n\r\n\r\ndef size(path):\r\n    return os.path.getsize(path)\r\n",
    "src/b.py": b"request_limit = 10\nretries = 2\n",
    "old.txt": b"first\nsecond\n",
}
V4A = """*** Begin Patch
*** Add File: docs/new.md
+# New
*** Update File: src/a.py
@@ def size(path):
-    return os.path.getsize(path)
+    return os.stat(path).st_size
*** Delete File: old.txt
*** Update File: src/b.py
*** Move to: src/limits.py
@@
-request_limit = 10
+request_limit = 20
*** End Patch
"""
BLOCKS = """src/a.py
<<<<<<< SEARCH
    return os.path.getsize(path)
=======
    return os.stat(path).st_size
>>>>>>> REPLACE

src/b.py
<<<<<<< SEARCH
request_limits = 10
=======
request_limits = 20
>>>>>>> REPLACE
"""


def no_model() -> NoReturn:
    raise ModelUnavailable("no model in this test")


def patched(edit: str, files: dict[str, bytes] | None = None, **options: object) -> ApplyResult:
    request = PatchRequest(edit, **options)  # type: ignore[arg-type]
    return Applier(no_model).apply_patch(request, (FILES if files is None else files).get)


def refused(edit: str, files: dict[str, bytes] | None = None, **options: object) -> EditRefused:
    with pytest.raises(EditRefused) as fault:
        patched(edit, files, **options)
    return fault.value


def test_a_patch_creates_updates_deletes_and_moves_in_one_answer() -> None:
    result = patched(V4A)
    assert result.status == "merged"
    created, updated, deleted, moved = result.files
    assert (created.action, created.path, created.merged) == ("create", "docs/new.md", "# New\n")
    assert (created.sha256_before, created.sha256_after) == ("", sha256(b"# New\n").hexdigest())
    assert (updated.action, updated.path) == ("update", "src/a.py")
    assert updated.data == FILES["src/a.py"].replace(b"os.path.getsize(path)", b"os.stat(path).st_size")
    assert (deleted.action, deleted.path, deleted.merged, deleted.sha256_after) == ("delete", "old.txt", "", "")
    assert (moved.action, moved.path, moved.move_to) == ("move", "src/b.py", "src/limits.py")
    assert moved.data == b"request_limit = 20\nretries = 2\n"
    assert all(file.certainty == "certain" and file.status == "merged" for file in result.files)


def test_a_patch_applied_twice_is_a_noop() -> None:
    after = {file.move_to or file.path: file.data for file in patched(V4A).files if file.action != "delete"}
    again = patched(V4A, after)
    assert again.status == "noop"
    assert [file.diff for file in again.files] == ["", "", "", ""]
    assert [file.action for file in again.files] == ["create", "update", "delete", "move"]


def test_several_edits_of_one_file_are_one_entry() -> None:
    patch = "*** Begin Patch\n*** Update File: b\n@@\n-1\n+one\n*** Update File: b\n@@\n-2\n+two\n*** End Patch\n"
    (file,) = patched(patch, {"b": b"1\n2\n"}).files
    assert file.merged == "one\ntwo\n"
    assert file.diff.count("@@ -") == 1


def test_a_file_that_is_deleted_and_created_anew_is_an_update() -> None:
    patch = "*** Begin Patch\n*** Delete File: b\n*** Add File: b\n+new\n*** End Patch\n"
    (file,) = patched(patch, {"b": b"1\n2\n"}).files
    assert (file.action, file.merged, file.sha256_before) == ("update", "new\n", sha256(b"1\n2\n").hexdigest())


def test_two_files_change_places() -> None:
    rename = "diff --git a/{0} b/{1}\nsimilarity index 100%\nrename from {0}\nrename to {1}\n"
    result = patched(rename.format("a", "b") + rename.format("b", "a"), {"a": b"1\n", "b": b"2\n"})
    assert [(file.path, file.move_to, file.merged) for file in result.files] == [("a", "b", "1\n"), ("b", "a", "2\n")]


def test_all_files_that_are_refused_are_named_with_their_reasons_and_none_is_merged() -> None:
    patch = V4A.replace("-request_limit = 10", "-request_limit = 11").replace(
        "*** Delete File: old.txt", "*** Delete File: none.txt"
    )
    fault = refused(patch, mode="deterministic")
    assert [(reason.path, reason.code) for reason in fault.reasons] == [
        ("none.txt", "file_missing"),
        ("src/b.py", "not_found"),
    ]
    assert "none.txt, src/b.py" in str(fault)
    assert "request_limit = 10" in fault.reasons[1].nearest


def test_deterministic_mode_asks_no_model_and_names_the_file() -> None:
    fault = refused(BLOCKS, mode="deterministic")
    assert [reason.path for reason in fault.reasons] == ["src/b.py"]


@pytest.mark.parametrize("files", [FILES, {**FILES, "src/b.py": b"request_limits = 10\nrequest_limits = 10\n"}])
def test_a_place_that_is_missing_or_ambiguous_is_refused_and_no_model_is_asked(files: dict[str, bytes]) -> None:
    merger = ScriptedMerger("request_limits = 20\nretries = 2\n")
    with pytest.raises(EditRefused) as fault:
        Applier(lambda: merger).apply_patch(PatchRequest(BLOCKS), files.get)
    (reason,) = fault.value.reasons
    assert reason.path == "src/b.py"
    assert reason.suggestion
    assert not merger.seen


@dataclass
class _ByPath(ScriptedMerger):
    """Answers each file's edit with that file's text of `texts`."""

    texts: dict[str, str] = field(default_factory=dict)

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        return replace(super().merge(task, context, progress), text=self.texts[task.request.path])


def test_a_model_that_is_asked_for_sees_of_each_update_its_own_part() -> None:
    size = FILES["src/a.py"].decode().replace("\r\n", "\n").replace("path.getsize(path)", "stat(path).st_size")
    merger = _ByPath(texts={"src/a.py": size, "src/b.py": "request_limits = 20\nretries = 2\n"})
    result = Applier(lambda: merger).apply_patch(PatchRequest(BLOCKS, mode="model"), FILES.get)
    assert [(file.path, file.method, file.certainty, file.status) for file in result.files] == [
        ("src/a.py", "model", "model", "merged"),
        ("src/b.py", "model", "model", "merged"),
    ]
    asked = {request.path: request.edit for request in merger.seen}
    edit = "<<<<<<< SEARCH\nrequest_limits = 10\n=======\nrequest_limits = 20\n>>>>>>> REPLACE\n"
    assert asked["src/b.py"] == edit
    assert "request_limits" not in asked["src/a.py"]
    assert result.usage.completion == 10


def test_one_rejected_file_rejects_the_set() -> None:
    size = FILES["src/a.py"].decode().replace("\r\n", "\n").replace("path.getsize(path)", "stat(path).st_size")
    merger = _ByPath(texts={"src/a.py": size, "src/b.py": "retries = 2\n"})
    result = Applier(lambda: merger).apply_patch(PatchRequest(BLOCKS, mode="model"), FILES.get)
    assert [file.status for file in result.files] == ["merged", "rejected"]
    assert result.status == "rejected"


def test_the_model_is_not_asked_where_another_file_is_refused_anyway() -> None:
    merger = ScriptedMerger("request_limits = 20\nretries = 2\n")
    with pytest.raises(EditRefused) as fault:
        Applier(lambda: merger).apply_patch(PatchRequest(BLOCKS, mode="model"), {"src/b.py": FILES["src/b.py"]}.get)
    assert [(reason.path, reason.code) for reason in fault.value.reasons] == [("src/a.py", "file_missing")]
    assert not merger.seen


def test_where_no_model_can_be_had_the_reason_of_the_rules_is_told_too() -> None:
    block = "src/b.py" + BLOCKS.partition("src/b.py")[2]
    with pytest.raises(ModelUnavailable) as fault:
        patched(block, mode="model")
    assert [(reason.path, reason.code) for reason in fault.value.reasons] == [("src/b.py", "not_found")]


@pytest.mark.parametrize("path", ["../b", "/etc/passwd", "a/../../b", "C:\\b"])
def test_paths_that_lead_out_are_refused_and_never_read(path: str) -> None:
    def read(path: str) -> bytes | None:
        raise AssertionError(f"{path} was read")

    patch = f"*** Begin Patch\n*** Delete File: {path}\n*** End Patch\n"
    with pytest.raises(EditRefused) as fault:
        Applier(no_model).apply_patch(PatchRequest(patch), read)
    assert fault.value.reasons[0].code == "malformed"


def test_an_edit_that_names_no_file_is_malformed() -> None:
    with pytest.raises(BadRequest, match="name its file"):
        patched("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n")


def test_a_created_file_is_checked_but_whatever_was_sent_may_not_parse() -> None:
    patch = "*** Begin Patch\n*** Add File: new.py\n+def broken(:\n*** End Patch\n"
    assert patched(patch, {}).status == "merged"


def test_edits_of_their_own_are_merged_together_or_refused_together() -> None:
    block = "<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"
    first = ApplyRequest(b"a = 1\n", block.format("a = 1", "a = 2"), "a.py", mode="deterministic")
    second = ApplyRequest(b"b = 1\n", block.format("b = 1", "b = 2"), "b.py", mode="deterministic")
    missed = ApplyRequest(b"c = 1\n", block.format("x", "y"), "c.py", mode="deterministic")
    applier = Applier(no_model)
    assert [file.merged for file in applier.apply_each([first, second]).files] == ["a = 2\n", "b = 2\n"]
    with pytest.raises(EditRefused) as fault:
        applier.apply_each([first, missed, second])
    assert [reason.path for reason in fault.value.reasons] == ["c.py"]


# The model is asked about several files concurrently, with the same results in the same order.


NAMES = [f"{letter}.py" for letter in "abcdefgh"]


@dataclass
class Recording(ProgressListener):
    """Writes down what it is told."""

    wants_text = True
    pieces: dict[str, list[str]] = field(default_factory=dict)
    phases: list[tuple[str, str]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    num_started: int = 0

    def on_start(self) -> None:
        self.num_started += 1

    def on_phase(self, phase: str, path: str = "") -> None:
        self.phases.append((path, phase))

    def on_tokens(self, num_tokens: int) -> None:
        self.written.append(num_tokens)

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        self.pieces.setdefault(path, []).extend(piece.text for piece in pieces)

    def on_answer(self, trace: AnswerTrace) -> None:
        self.answers.append(trace.path)


@dataclass
class Together(ScriptedMerger):
    """Merges nothing before all are there, and then each at its own pace."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(len(NAMES), timeout=30))

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        self.seen.append(task.request)
        progress.on_start()
        context.cancel.add_callback(self.cancelled.set)
        self.barrier.wait()
        threading.Event().wait(0.002 * (hash(task.request.path) % 7))
        progress.on_tokens(3)
        progress.on_pieces(0, [Piece(task.request.path, "generated")])
        progress.on_answer(AnswerTrace(task.request.path, 0, "write", (), (), ()))
        return ModelMerge(f"name = '{task.request.path}'\n", False, Usage(completion=3), {"decode_ms": 1.0})


def requests() -> list[ApplyRequest]:
    edit = '{"old_string": "name = 0", "new_string": "name = 1"}'
    return [ApplyRequest(b"name = 0\n", edit, name, mode="model", policy="lenient") for name in NAMES]


def texts(result: ApplyResult) -> dict[str, str]:
    return {file.path: file.merged for file in result.files}


def patch_of(names: Sequence[str]) -> str:
    return "".join(f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-name = 0\n+name = 1\n" for name in names)


def concurrent_patched(merger: ScriptedMerger, context: RequestContext, progress: ProgressListener) -> ApplyResult:
    request = PatchRequest(patch_of(NAMES), mode="model", policy="lenient", trace=True)
    return Applier(lambda: merger).apply_patch(request, lambda _: b"name = 0\n", context, progress)


def each(merger: ScriptedMerger, context: RequestContext, progress: ProgressListener) -> ApplyResult:
    traced = [replace(one, trace=True) for one in requests()]
    return Applier(lambda: merger).apply_each(traced, context, progress)


@pytest.mark.parametrize("apply", [each, concurrent_patched])
def test_files_are_asked_for_at_once_and_answered_in_their_order(
    apply: Callable[[ScriptedMerger, RequestContext, ProgressListener], ApplyResult],
) -> None:
    progress = Recording()
    result = apply(Together(), RequestContext(), progress)
    assert list(texts(result).items()) == [(name, f"name = '{name}'\n") for name in NAMES]
    assert result.usage.completion == 3 * len(NAMES)
    assert result.timings["decode_ms"] == len(NAMES)
    assert result.trace is not None
    assert [answer.path for answer in result.trace] == progress.answers == NAMES
    assert progress.pieces == {name: [name] for name in NAMES}
    assert sorted(progress.written) == [3 * number for number in range(1, len(NAMES) + 1)]


def test_together_they_come_to_what_they_come_to_alone() -> None:
    class Echoing(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            return ModelMerge(f"name = '{task.request.path}'\n", False, Usage(prompt=len(task.request.path)), {})

    applier = Applier(Echoing)
    alone = [applier.apply(request) for request in requests()]
    together = applier.apply_each(requests())
    assert together.files == tuple(result.file for result in alone)


def test_what_a_rule_refuses_keeps_the_model_from_being_asked_at_all() -> None:
    merger = ScriptedMerger("name = 1\n")
    bad = ApplyRequest(b"x\n", '{"old_string": "name = 0", "new_string": "name = 1"}', "bad.py", mode="deterministic")
    with pytest.raises(EditRefused) as refused:
        Applier(lambda: merger).apply_each([*requests(), bad])
    assert [reason.path for reason in refused.value.reasons] == ["bad.py"]
    assert merger.seen == []


def test_one_that_fails_stops_the_others_and_its_error_is_raised() -> None:
    class OneFails(ScriptedMerger):
        """The third breaks down once the others run, which end only when they are stopped."""

        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            self.seen.append(task.request)
            if task.request.path == NAMES[2]:
                while len(self.seen) < len(NAMES):
                    threading.Event().wait(0.001)
                raise ModelFailed("broke down")
            stopped = threading.Event()
            progress.on_start()
            context.cancel.add_callback(stopped.set)
            if stopped.wait(30):
                told.append(task.request.path)
            raise Cancelled("stopped")

    told: list[str] = []
    merger = OneFails()
    with pytest.raises(ModelFailed):
        Applier(lambda: merger).apply_each(requests())
    assert sorted(told) == [name for name in NAMES if name != NAMES[2]], "nobody stopped them"


def test_what_has_not_begun_when_one_fails_does_not_begin() -> None:
    begun: list[int] = []

    def work(number: int) -> Callable[[RequestContext, ProgressListener], None]:
        def run(context: RequestContext, progress: ProgressListener) -> None:
            begun.append(number)
            stopped = threading.Event()
            progress.on_start()
            context.cancel.add_callback(stopped.set)
            if number == 0:
                raise ModelFailed("broke down")
            assert stopped.wait(30)

        return run

    works = [(str(number), work(number)) for number in range(10 * MAX_CONCURRENT_FILES)]
    with pytest.raises(ModelFailed):
        run_concurrently(works, RequestContext(), NO_PROGRESS)
    assert len(begun) < 3 * MAX_CONCURRENT_FILES


@dataclass
class Waiting(ScriptedMerger):
    """Ends only when it is cancelled."""

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        stopped = threading.Event()
        context.cancel.add_callback(stopped.set)
        progress.on_start()
        assert stopped.wait(30)
        self.seen.append(task.request)
        raise Cancelled("stopped")


def test_whoever_waits_cancels_each() -> None:
    merger, context = Waiting(), RequestContext()

    class Leaving(Recording):
        def on_start(self) -> None:
            super().on_start()
            if self.num_started == len(NAMES):
                context.cancel.cancel()

    with pytest.raises(Cancelled):
        each(merger, context, Leaving())
    assert sorted(request.path for request in merger.seen) == NAMES


def test_each_has_the_priority_of_the_request_and_its_cancellation_ends_the_editors_work() -> None:
    context, barrier = RequestContext(priority=7), threading.Barrier(3, timeout=30)

    def work(own: RequestContext, progress: ProgressListener) -> int:
        check_stopped()
        barrier.wait()
        context.cancel.cancel()
        with pytest.raises(Cancelled):
            check_stopped()
        return own.priority

    assert run_concurrently([("", work)] * 3, context, NO_PROGRESS) == [7] * 3


def test_each_remembers_for_its_tenant_only() -> None:
    """The editor's memory of one tenant is not found by another, whichever thread merges."""
    owners: list[str] = []

    class Remembering(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
            owners.append(execution._OWNER.get())
            return super().merge(task, context, progress)

    Applier(Remembering).apply_each([replace(one, salt="tenant") for one in requests()])
    assert owners == ["tenant"] * len(NAMES)


def test_one_alone_needs_no_thread() -> None:
    works = [("", lambda context, progress: threading.current_thread())]
    assert run_concurrently(works, RequestContext(), NO_PROGRESS) == [threading.current_thread()]
    assert run_concurrently([], RequestContext(), NO_PROGRESS) == []
