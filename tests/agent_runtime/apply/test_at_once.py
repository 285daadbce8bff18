"""Files of one apply are worked on at once: the same results in the same order as one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import Cancelled, EditRefused, ModelFailed
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


def patched(merger: ScriptedMerger, context: RequestContext, progress: ProgressListener) -> ApplyResult:
    request = PatchRequest(patch_of(NAMES), mode="model", policy="lenient", trace=True)
    return Applier(lambda: merger).apply_patch(request, lambda _: b"name = 0\n", context, progress)


def each(merger: ScriptedMerger, context: RequestContext, progress: ProgressListener) -> ApplyResult:
    traced = [replace(one, trace=True) for one in requests()]
    return Applier(lambda: merger).apply_each(traced, context, progress)


@pytest.mark.parametrize("apply", [each, patched])
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
