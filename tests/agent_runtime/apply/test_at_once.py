"""Files of one apply are worked on at once: the same results in the same order as one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import Cancelled, EditRefused, ModelFailed
from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.progress import AT_ONCE, Piece, Watcher, at_once
from agent_runtime.types import AnswerTrace, ApplyRequest, ApplyResult, PatchRequest, Usage
from tests.agent_runtime.scripted import ScriptedMerger

NAMES = [f"{letter}.py" for letter in "abcdefgh"]


@dataclass
class Recording(Watcher):
    """Writes down what it is told."""

    wants_text = True
    pieces: dict[str, list[str]] = field(default_factory=dict)
    phases: list[tuple[str, str]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    stops: list[Callable[[], None]] = field(default_factory=list)

    def began(self, stop: Callable[[], None]) -> None:
        self.stops.append(stop)

    def entered(self, phase: str, path: str = "") -> None:
        self.phases.append((path, phase))

    def wrote(self, num_tokens: int) -> None:
        self.written.append(num_tokens)

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        self.pieces.setdefault(path, []).extend(piece.text for piece in pieces)

    def answered(self, trace: AnswerTrace) -> None:
        self.answers.append(trace.path)


@dataclass
class Together(ScriptedMerger):
    """Merges nothing before all are there, and then each at its own pace."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(len(NAMES), timeout=30))

    def merge(self, task: ModelTask, watcher: Watcher) -> ModelMerge:
        self.seen.append(task.request)
        watcher.began(self.cancelled.set)
        self.barrier.wait()
        threading.Event().wait(0.002 * (hash(task.request.path) % 7))
        watcher.wrote(3)
        watcher.wrote_pieces(0, [Piece(task.request.path, "generated")])
        watcher.answered(AnswerTrace(task.request.path, 0, "write", (), (), ()))
        return ModelMerge(f"name = '{task.request.path}'\n", False, Usage(completion=3), {"decode_ms": 1.0})


def requests() -> list[ApplyRequest]:
    edit = '{"old_string": "name = 0", "new_string": "name = 1"}'
    return [ApplyRequest(b"name = 0\n", edit, name, mode="model", policy="lenient") for name in NAMES]


def texts(result: ApplyResult) -> dict[str, str]:
    return {file.path: file.merged for file in result.files}


def patch_of(names: Sequence[str]) -> str:
    return "".join(f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-name = 0\n+name = 1\n" for name in names)


def patched(merger: ScriptedMerger, watcher: Watcher) -> ApplyResult:
    request = PatchRequest(patch_of(NAMES), mode="model", policy="lenient", trace=True)
    return Applier(lambda: merger).apply_patch(request, lambda _: b"name = 0\n", watcher)


def each(merger: ScriptedMerger, watcher: Watcher) -> ApplyResult:
    return Applier(lambda: merger).apply_each([replace(one, trace=True) for one in requests()], watcher)


@pytest.mark.parametrize("apply", [each, patched])
def test_files_are_asked_for_at_once_and_answered_in_their_order(
    apply: Callable[[ScriptedMerger, Watcher], ApplyResult],
) -> None:
    watcher = Recording()
    result = apply(Together(), watcher)
    assert list(texts(result).items()) == [(name, f"name = '{name}'\n") for name in NAMES]
    assert result.usage.completion == 3 * len(NAMES)
    assert result.timings["decode_ms"] == len(NAMES)
    assert result.trace is not None
    assert [answer.path for answer in result.trace] == watcher.answers == NAMES
    assert watcher.pieces == {name: [name] for name in NAMES}
    assert sorted(watcher.written) == [3 * number for number in range(1, len(NAMES) + 1)]


def test_together_they_come_to_what_they_come_to_alone() -> None:
    class Echoing(ScriptedMerger):
        def merge(self, task: ModelTask, watcher: Watcher) -> ModelMerge:
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

        def merge(self, task: ModelTask, watcher: Watcher) -> ModelMerge:
            self.seen.append(task.request)
            if task.request.path == NAMES[2]:
                while len(self.seen) < len(NAMES):
                    threading.Event().wait(0.001)
                raise ModelFailed("broke down")
            stopped = threading.Event()
            watcher.began(stopped.set)
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

    def work(number: int) -> Callable[[Watcher], None]:
        def run(watcher: Watcher) -> None:
            begun.append(number)
            stopped = threading.Event()
            watcher.began(stopped.set)
            if number == 0:
                raise ModelFailed("broke down")
            assert stopped.wait(30)

        return run

    with pytest.raises(ModelFailed):
        at_once([(str(number), work(number)) for number in range(10 * AT_ONCE)], Watcher())
    assert len(begun) < 3 * AT_ONCE


def test_the_stop_of_whoever_waits_reaches_each() -> None:
    watcher = Recording()
    each(Together(), watcher)
    assert len(watcher.stops) == len(NAMES)


CONTEXT: ContextVar[str] = ContextVar("CONTEXT", default="")


def test_each_knows_the_context_of_who_asked() -> None:
    CONTEXT.set("mine")
    assert at_once([("", lambda _: CONTEXT.get())] * 3, Watcher()) == ["mine"] * 3


def test_one_alone_needs_no_thread() -> None:
    assert at_once([("", lambda _: threading.current_thread())], Watcher()) == [threading.current_thread()]
    assert at_once([], Watcher()) == []
