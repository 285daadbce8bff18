"""Rules on large texts run in other processes, with the same answers, until the request is cancelled."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.rule_process import RuleProcessError, RuleProcesses
from agent_runtime.errors import BadFile, Cancelled, EditRefused, HunkError
from agent_runtime.request_context import NO_PROGRESS, ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest
from tests.agent_runtime.scripted import ScriptedMerger

TEXT = "".join(f"def f{number}(x):\n    return x + {number}\n\n\n" for number in range(50))
PAIR = json.dumps({"old_string": "x + 7\n", "new_string": "x - 7\n"})
MISS = json.dumps({"old_string": "y + 7\n", "new_string": "x - 7\n"})
LAZY = "# ... existing code ...\n\ndef f7(x):\n    return x - 7\n\n# ... existing code ...\n"
UNCLEAR = "# ... existing code ...\n    unheard_of(1)\n# ... existing code ...\n"
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-    return x + 7\n+    return x - 7\n*** End Patch\n"
BROKEN = "*** Begin Patch\n*** Update File: a.py\n@@\n-    return y\n+    return x - 7\n*** End Patch\n"


@pytest.fixture
def aside() -> Iterator[RuleProcesses]:
    """For which all is large."""
    made = RuleProcesses(10.0, large_bytes=1)
    yield made
    made.close()


def outcome(work: Callable[[], ApplyResult]) -> Any:
    """All that an answer says, but for its times."""
    try:
        return replace(work(), timings={})
    except HunkError as fault:
        return type(fault), fault.args, vars(fault)


def told(applier: Applier) -> list[Any]:
    def of(edit: str, **options: Any) -> ApplyRequest:
        return ApplyRequest(TEXT.encode(), edit, "a.py", **options)

    files = {"a.py": TEXT.encode()}
    singles = [
        of(PAIR),
        of(MISS),
        of(LAZY),
        of("{"),
        of(UNCLEAR),
        of(UNCLEAR, mode="deterministic"),
        of(PAIR, mode="model"),
    ]
    answers = [outcome(lambda one=one: applier.apply(one)) for one in (*singles, of(PAIR, trace=True))]
    answers += [
        outcome(lambda: applier.apply_each([of(PAIR), of(LAZY)])),
        outcome(lambda: applier.apply_each(singles[:2])),
    ]
    for edit in (PATCH, BROKEN, "nonsense", PATCH.replace("a.py", "b.py")):
        answers.append(outcome(lambda edit=edit: applier.apply_patch(PatchRequest(edit), files.get)))
    return answers


def test_answers_and_refusals_are_those_of_the_service_itself(aside: RuleProcesses) -> None:
    def model() -> ScriptedMerger:
        return ScriptedMerger(TEXT.replace("x + 7", "x - 7"))

    assert told(Applier(model, aside)) == told(Applier(model))  # type: ignore[arg-type]
    (process,) = aside._idle
    assert process._process.poll() is None, "one did them all"


class Noted(ProgressListener):
    """Notes phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def on_phase(self, phase: str, path: str = "") -> None:
        self.phases.append(phase)


def test_phases_are_told_and_files_are_read_here_once(aside: RuleProcesses) -> None:
    progress, read = Noted(), []

    def reader(path: str) -> bytes:
        read.append((path, os.getpid()))
        return TEXT.encode()

    Applier(None, aside).apply_patch(PatchRequest(PATCH), reader, progress=progress)  # type: ignore[arg-type]
    assert progress.phases == ["parse", "merge", "verify"]
    assert read == [("a.py", os.getpid())]


def test_what_a_model_decides_is_not_merged_here_again(aside: RuleProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("merge", "verify"):
        monkeypatch.setattr(f"agent_runtime.apply.pipeline.{name}", lambda *given, **more: pytest.fail("done here"))
    monkeypatch.setattr("agent_runtime.apply.multi_file.patch_set.merge_files", lambda *given: pytest.fail("done here"))
    model, files = ScriptedMerger(TEXT.replace("x + 7", "x - 7")), {"a.py": TEXT.encode()}
    applier, progress = Applier(lambda: model, aside), Noted()
    single = ApplyRequest(TEXT.encode(), UNCLEAR, "a.py", policy="lenient", trace=True)
    assert applier.apply(single, progress=progress).files[0].certainty == "model"
    assert progress.phases == ["parse", "merge", "verify"]
    applier.apply_each([single, ApplyRequest(TEXT.encode(), PAIR, "a.py")])
    applier.apply_patch(PatchRequest(PATCH, mode="model", policy="lenient"), files.get)
    assert model.num_written == 3
    (process,) = aside._idle
    assert process.is_running


def test_no_more_than_a_few_are_kept_while_a_model_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service merges by rule again what it asks the model beside them."""
    monkeypatch.setattr("agent_runtime.apply.rule_process.MAX_WAITING", 1)
    aside, hold, answers = RuleProcesses(10.0, large_bytes=1), threading.Event(), []
    model = ScriptedMerger(TEXT.replace("x + 7", "x - 7"), hold=hold)
    applier = Applier(lambda: model, aside)
    request = ApplyRequest(TEXT.encode(), UNCLEAR, "a.py", policy="lenient")
    threads = [threading.Thread(target=lambda: answers.append(applier.apply(request))) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(model.seen) < 3:
        time.sleep(0.01)
    num_idle = len(aside._idle)
    hold.set()
    for thread in threads:
        thread.join()
    assert num_idle == 2
    assert len(aside._idle) == 3
    assert {answer.files[0].certainty for answer in answers} == {"model"}
    aside.close()


def test_small_files_stay_here_and_large_ones_go() -> None:
    class Counted(RuleProcesses):
        asked = 0

        def apply(self, *arguments: Any, **more: Any) -> ApplyResult | None:
            self.asked += 1
            return None

    aside = Counted(10.0, large_bytes=len(TEXT))
    applier = Applier(None, aside)  # type: ignore[arg-type]
    small, large = TEXT[: len(TEXT) // 2].encode(), TEXT.encode()
    for text, expected in ((small, 0), (large, 1)):
        aside.asked = 0
        first = outcome(lambda text=text: applier.apply(ApplyRequest(text, PAIR, "a.py")))
        assert aside.asked == expected
        again = outcome(lambda text=text: applier.apply_patch(PatchRequest(PATCH), {"a.py": text}.get))
        assert aside.asked == 2 * expected
        assert (first.status, again.status) == ("merged", "merged")


def test_a_fault_of_reading_is_raised_and_the_next_edit_is_done(aside: RuleProcesses) -> None:
    def reader(path: str) -> bytes:
        raise BadFile(f"{path} is a pipe")

    applier = Applier(None, aside)  # type: ignore[arg-type]
    with pytest.raises(BadFile, match="a pipe"):
        applier.apply_patch(PatchRequest(PATCH), reader)
    assert applier.apply(ApplyRequest(TEXT.encode(), PAIR, "a.py")).status == "merged"


def stopped(aside: RuleProcesses) -> int:
    """A process that waits for an edit, and does not go on: its id."""
    applier = Applier(None, aside)  # type: ignore[arg-type]
    applier.apply(ApplyRequest(TEXT.encode(), PAIR, "a.py"))
    pid = aside._idle[0]._process.pid
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_whoever_leaves_ends_the_process_whatever_it_is_at(aside: RuleProcesses) -> None:
    pid, context = stopped(aside), RequestContext()
    applier = Applier(None, aside)  # type: ignore[arg-type]
    threading.Timer(0.1, context.cancel.cancel).start()
    with pytest.raises(Cancelled):
        applier.apply(ApplyRequest(TEXT.encode(), PAIR, "a.py"), context)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert applier.apply(ApplyRequest(TEXT.encode(), PAIR, "a.py")).status == "merged", "there is another one"


def test_a_process_that_breaks_or_hangs_takes_its_edit_with_it_and_no_other(
    aside: RuleProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = Applier(None, aside)  # type: ignore[arg-type]
    for signal_number, seconds in ((signal.SIGKILL, 60.0), (None, 0.2)):
        monkeypatch.setattr("agent_runtime.apply.rule_process.MAX_SECONDS", seconds)
        pid = stopped(aside)
        if signal_number is not None:
            threading.Timer(0.1, os.kill, (pid, signal_number)).start()
        with pytest.raises(EditRefused) as caught:
            applier.apply(ApplyRequest(TEXT.encode(), PAIR, "a.py"))
        assert [reason.code for reason in caught.value.reasons] == ["too_much_work"]
        monkeypatch.setattr("agent_runtime.apply.rule_process.MAX_SECONDS", 60.0)
        assert applier.apply(ApplyRequest(TEXT.encode(), PAIR, "a.py")).status == "merged"


def test_it_has_a_lower_priority(aside: RuleProcesses) -> None:
    Applier(None, aside).apply(ApplyRequest(TEXT.encode(), PAIR, "a.py"))  # type: ignore[arg-type]
    ours, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, aside._idle[0]._process.pid))
    assert its == min(19, ours + 10)


def test_one_that_ended_while_it_waited_is_not_asked(aside: RuleProcesses) -> None:
    os.kill(stopped(aside), signal.SIGKILL)
    aside._idle[0]._process.wait()
    assert Applier(None, aside).apply(ApplyRequest(TEXT.encode(), PAIR, "a.py")).status == "merged"  # type: ignore[arg-type]


def test_a_bug_is_told_without_the_text_that_it_may_quote(
    aside: RuleProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuleProcessError, match=r"^AttributeError$"):
        aside.apply(("secret", ()), RequestContext(), NO_PROGRESS, lambda tasks, context, progress: [])
    (line,) = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert line["error"] == "AttributeError"
    assert "rule_worker.py:" in line["stack"][-1]
    assert "secret" not in caplog.text + str(line)
    assert aside._idle[0].is_running


def test_its_time_on_the_processor_is_bounded() -> None:
    aside = RuleProcesses(0.0, large_bytes=1)
    with pytest.raises(EditRefused) as caught:
        Applier(None, aside).apply(ApplyRequest(TEXT.encode(), PAIR, "a.py"))  # type: ignore[arg-type]
    aside.close()
    assert [reason.code for reason in caught.value.reasons] == ["too_much_work"]


def test_it_ends_with_the_service(aside: RuleProcesses) -> None:
    Applier(None, aside).apply(ApplyRequest(TEXT.encode(), PAIR, "a.py"))  # type: ignore[arg-type]
    process = aside._idle[0]
    process._pipe.close()  # as when the service is killed
    while process._process.poll() is None:
        time.sleep(0.01)
    assert process._process.returncode == 0
    aside._idle.clear()
