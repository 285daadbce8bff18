"""An engine measures its passes once a machine and keeps to what it found: then equal requests take equal passes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.speculation.step_times import BAND, KNOTS, MEASURED, PassTimes, on_grid
from engine.types import Draft, GenerationRequest
from tests.engine.cores import PROMPT, alone, make_core, run_one, same, tiny_model
from tests.engine.drafters import AlwaysWrong, Oracle
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE


def true_seconds(num_rows: int) -> float:
    return 0.0053 + 0.0001 * num_rows


REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=40)


class Machine:
    """A clock that moves by 5.3 ms and 0.1 for each row in every pass of a model, and by up to `jitter` of that more.

    So times lie well between two borders of the grid that they are rounded to.
    """

    def __init__(self, model: Decoder, monkeypatch: pytest.MonkeyPatch, jitter: float = 0.0, seed: int = 0) -> None:
        self.now = 0.0
        self.jitter = jitter
        self.rows: list[int] = []
        real, rng = model.forward_batch, random.Random(seed)

        def timed(batch, kv):  # type: ignore[no-untyped-def]
            self.rows.append(len(batch.token_ids))
            self.now += true_seconds(len(batch.token_ids)) * (1.0 + self.jitter * rng.random())
            return real(batch, kv)

        monkeypatch.setattr(model, "forward_batch", timed)


def core_with(folder: Path | None, machine: Machine, model: Decoder) -> EngineCore:
    config = EngineConfig(max_seq_len=200, page_size=4, pass_times_dir=folder, check_integrity=True)
    return EngineCore(model, TOKEN_BYTES, config, lambda: machine.now)


@pytest.mark.parametrize("windowed", [False, True])
def test_the_first_start_measures_and_the_next_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windowed: bool
) -> None:
    model = tiny_model(windowed=windowed)
    machine = Machine(model, monkeypatch)
    core = core_with(tmp_path, machine, model)
    for rows, seconds in on_grid({rows: true_seconds(rows) for rows in MEASURED}).items():
        assert core.times(rows) == pytest.approx(seconds)
    assert machine.now < 1.6
    assert same(run_one(core, REQUEST), alone(model, REQUEST)), "what was measured has left nothing behind"
    measured = len(machine.rows)
    again = core_with(tmp_path, machine, model)
    assert machine.rows[measured:] == [1, 1, 1, 64, 64, 64], "just to see whether the times can be right"
    assert again.times.seconds == core.times.seconds


def test_times_of_a_loaded_start_are_measured_again_when_the_load_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    first = core_with(tmp_path, machine, model)
    assert first._timed._file is not None
    first._timed._file.write(PassTimes({1: 0.02, 64: 0.024}))
    for _ in range(2):
        core = core_with(tmp_path, machine, model)
        assert core.times.seconds == pytest.approx(first.times.seconds)


@pytest.mark.parametrize("factor", [0.0, 5.0])
def test_times_of_another_shape_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """On a machine that does too much at once rows look free; what was learned there is no good without the load."""
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    right = core_with(tmp_path, machine, model).times.seconds
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text())
    single = kept["seconds"]["1"]
    kept["seconds"] = {rows: single + factor * (each - single) for rows, each in kept["seconds"].items()}
    file.write_text(json.dumps(kept))
    assert core_with(tmp_path, machine, model).times.seconds == pytest.approx(right)


@pytest.mark.parametrize("factor", [0.1, 8.0])
def test_single_passes_alone_do_not_run_away_with_the_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """A start beside other work found all passes slower than they are; then no draft runs, or the load comes back."""
    model = tiny_model()
    timed = core_with(tmp_path, Machine(model, monkeypatch), model)._timed
    before = [timed.times(rows) / timed.times(1) for rows in KNOTS]
    for _ in range(3000):
        timed.observe(1, 1, factor * true_seconds(1))
    after = [timed.times(rows) / timed.times(1) for rows in KNOTS]
    assert all(1 / BAND**2 < new / old < BAND**2 for new, old in zip(after, before, strict=True))


def test_every_row_of_a_measured_pass_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, scored = tiny_model(), []
    machine = Machine(model, monkeypatch)
    real = model.likeliest

    def counted(hidden):  # type: ignore[no-untyped-def]
        scored.append(len(hidden))
        return real(hidden)

    monkeypatch.setattr(model, "likeliest", counted)
    core_with(tmp_path, machine, model)
    assert sum(scored) == sum(machine.rows) > 256


class SlipsNowAndThen:
    """A draft of what will be written, wrong at every ninth place."""

    def __init__(self, target: Sequence[int]) -> None:
        self._target = list(target)

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        start = len(output_ids)
        wrong = [(each + (place % 9 == 8)) % VOCAB_SIZE for place, each in enumerate(self._target)]
        return Draft.of(wrong[start : start + max_tokens], hazard=0.01)


def rows_of_passes(core: EngineCore, machine: Machine, target: Sequence[int]) -> list[int]:
    """Of three requests that share nothing, one after the other."""
    before = len(machine.rows)
    for number in range(3):
        run_one(core, replace(REQUEST, salt=str(number)), SlipsNowAndThen(target))
    return machine.rows[before:]


def test_equal_requests_take_equal_passes_in_every_engine_that_reads_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other work does to the clock."""
    model = tiny_model()
    target = alone(model, REQUEST).token_ids
    core_with(tmp_path, Machine(model, monkeypatch), model)
    found = []
    for seed in range(3):
        with monkeypatch.context() as patch:
            machine = Machine(model, patch, jitter=0.3, seed=seed)
            found.append(rows_of_passes(core_with(tmp_path, machine, model), machine, target))
    assert found[0] == found[1] == found[2]
    third = len(found[0]) // 3
    assert found[0] == 3 * found[0][:third], "and so do those that follow them"
    assert max(found[0]) > 3
    assert len(set(found[0])) > 3, "of several sizes"


def test_engines_that_measure_by_themselves_find_the_same_but_for_a_few_in_a_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    target = alone(model, REQUEST).token_ids
    found = []
    for seed in range(3):
        with monkeypatch.context() as patch:
            machine = Machine(model, patch, jitter=0.02, seed=seed)
            found.append(rows_of_passes(core_with(tmp_path / str(seed), machine, model), machine, target))
    assert found[0] == found[1] == found[2]


def test_times_that_are_far_from_right_are_corrected_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times say that rows cost next to nothing; single passes and drafts show what they do."""
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    core = core_with(tmp_path, machine, model)
    core.times.replace(PassTimes({1: 0.0054, 1024: 0.0058}))
    target = alone(model, REQUEST).token_ids
    before = core.times(40) / core.times(1)
    for _ in range(40):
        run_one(core, replace(REQUEST, max_new_tokens=4))
        run_one(core, REQUEST, Oracle(target, hazard=1e-4))
    assert before < 1.01
    assert core.times(40) / core.times(1) > 1.4
    assert core._timed._file is not None
    kept = core._timed._file.read()
    assert kept is not None
    assert kept.seconds == core.times.seconds, "and the file is corrected"


def test_passes_that_are_not_scored_throughout_teach_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, and long drafts that were departed from, run rows without the LM head; forced ones need none."""
    monkeypatch.setattr("engine.runner.verify.LM_HEAD_ROWS", 8)
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    core = core_with(tmp_path, machine, model)
    observed: list[int] = []
    monkeypatch.setattr(core._timed._corrections, "observe", lambda rows, seconds: observed.append(rows))
    target = alone(model, REQUEST).token_ids
    before = len(machine.rows)
    run_one(core, REQUEST, AlwaysWrong(target, VOCAB_SIZE))
    assert max(machine.rows[before:]) > 11 >= max(observed), "eight of eleven rows tell enough"
    assert max(observed) > 1, "a short draft is scored as a whole, though none of it is right"
    observed.clear()
    run_one(core, replace(REQUEST, max_new_tokens=10, forced_ids=tuple(target[:8])))
    assert observed == [1]


def test_without_a_folder_nothing_is_measured_or_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    core = core_with(None, machine, model)
    assert machine.rows == []
    run_one(core, REQUEST)
    assert core.times.seconds == make_core().times.seconds == PassTimes().seconds
