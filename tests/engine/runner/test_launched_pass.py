"""A card's pass runs while the engine gives away what the pass before it gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.engine import Engine
from engine.errors import DeadlineExceeded, EngineFault
from engine.reuse import Reuse
from engine.runner.step_rows import StepRows
from engine.runner.torch_runner import Wait
from engine.types import GenerationRequest
from tests.engine.cores import PROMPT, Collected, alone, drain, make_core, run_one, same
from tests.engine.reuse.turns import edited, random_ids, reusing_core, run
from tests.engine.runner.kernel_cores import by_kernels, kernel_core, kernel_model
from tests.engine.test_core import workloads
from tests.engine.tiny import TOKEN_BYTES, tiny_limits

REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=12)


def test_what_a_pass_gave_comes_when_the_next_one_runs() -> None:
    core, plain = kernel_core(kernel_model()), make_core(model=kernel_model())
    ids = core.add(REQUEST), plain.add(REQUEST)
    collected = Collected(), Collected()
    collected[1].take(plain.step())
    assert core.step() == []
    assert core.num_passes == 1
    collected[0].take(core.step())
    assert core.num_passes == 2
    assert collected[0].ids[ids[0]] == collected[1].ids[ids[1]]
    results = drain(core, collected[0]).results, drain(plain, collected[1]).results
    assert same(results[0][ids[0]], results[1][ids[1]])
    assert core.num_passes == plain.num_passes


def test_the_last_pass_is_work_that_is_left() -> None:
    core = kernel_core(kernel_model())
    core.add(replace(REQUEST, max_new_tokens=1))
    core.step()
    assert core.has_pending_work()
    (output,) = core.step()
    assert output.result is not None
    assert not core.has_pending_work()


@settings(max_examples=30)
@given(workload=workloads, num_pages=st.sampled_from([20, 64]), graphs=st.booleans())
def test_who_is_cancelled_while_a_pass_runs_gets_nothing_and_the_others_their_own(
    workload: list[Any], num_pages: int, graphs: bool
) -> None:
    model = kernel_model()
    core, collected, expected = kernel_core(model, num_pages=num_pages, graphs=graphs), Collected(), {}
    given_up: set[int] = set()
    for request, drafter, num_steps, gives_up in workload:
        target = alone(model, request)
        request_id = core.add(request, drafter(target.token_ids))
        expected[request_id] = target
        for _ in range(num_steps):
            collected.take(core.step())
        if gives_up and request_id not in collected.results:
            core.cancel(request_id)
            given_up.add(request_id)
            num_given = len(collected.ids.get(request_id, []))
            collected.take(core.step())
            assert len(collected.ids.get(request_id, [])) == num_given
    drain(core, collected)
    for request_id in expected.keys() - given_up:
        assert same(collected.results[request_id], expected[request_id])
    assert not given_up & collected.results.keys()


@pytest.mark.parametrize("when", ["launched", "waited for"])
def test_a_pass_that_raises_is_run_again_sequence_by_sequence(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = kernel_core(kernel_model())
    launch, sizes = core._runner.launch, []

    def fail() -> Any:
        raise RuntimeError("not enough memory")

    def launch_or_fail(rows: Sequence[StepRows], pages: Any) -> Wait:
        sizes.append(len(rows))
        if len(rows) > 1 or 41 in rows[0].sequence.token_ids:
            return fail() if when == "launched" else fail  # type: ignore[no-any-return]
        return launch(rows, pages)

    monkeypatch.setattr(core._runner, "launch", launch_or_fail)
    wanted = [replace(REQUEST, prompt=[*PROMPT, at]) for at in range(3)]
    ids = [core.add(request) for request in wanted]
    bad, cancelled = core.add(replace(REQUEST, prompt=[5, 41])), core.add(REQUEST)
    core.step()
    core.cancel(cancelled)
    collected = drain(core)
    for request_id, request in zip(ids, wanted, strict=True):
        assert same(collected.results[request_id], alone(kernel_model(), request))
    assert isinstance(collected.errors[bad], EngineFault)
    assert sizes[:5] == [5, 1, 1, 1, 1], "who was cancelled meanwhile is not run again"


def test_a_reset_and_a_deadline_find_a_pass_that_runs() -> None:
    seconds = [0.0]
    core = kernel_core(kernel_model(), clock=lambda: seconds[0])
    core.add(REQUEST)
    core.step()
    core.reset()
    assert not core.has_pending_work()
    late = core.add(replace(REQUEST, deadline_s=5.0))
    core.step()
    seconds[0] = 6.0
    collected = drain(core)
    assert isinstance(collected.errors[late], DeadlineExceeded)
    assert same(run_one(core, REQUEST), alone(kernel_model(), REQUEST))


def test_streams_of_an_engine_end_as_on_a_cpu() -> None:
    wanted = [replace(REQUEST, prompt=[*PROMPT, at], stop=(b"ab",)) for at in range(4)]
    with by_kernels(), Engine(kernel_model(), TOKEN_BYTES, tiny_limits()) as engine:
        streams = [engine.generate(request) for request in wanted]
        for stream, request in zip(streams, wanted, strict=True):
            text = b"".join(step.text for step in stream)
            assert stream.result is not None
            assert text == stream.result.text
            assert same(stream.result, alone(kernel_model(), request))


def test_a_pass_of_idle_work_gives_way_to_a_request() -> None:
    """It is cancelled while it runs, and goes on later."""
    random, turbo = Random(3), Reuse("turbo")
    with by_kernels():
        core = reusing_core(kernel_model(), idle_rebuild=True)
    prompt = random_ids(random, 90)
    run(core, prompt, turbo)
    assert run(core, edited(random, prompt), turbo).usage.reused_approximate
    while not core.idle_stats().counts.interrupted:
        assert core.has_pending_work()
        core.step()
        if core._pass is not None:
            assert same(run_one(core, REQUEST), alone(kernel_model(), REQUEST))
    drain(core)
    assert core.idle_stats().counts.rebuilt == 1
