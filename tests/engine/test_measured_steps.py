"""An engine measures its step times once per machine and keeps them, so equal requests take equal steps."""

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
from engine.speculation.step_times import MEASURED, StepTimes, round_to_grid
from engine.types import Draft, GenerationRequest
from tests.engine.cores import PROMPT, alone, make_core, run_one, same, tiny_model
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
    for rows, seconds in round_to_grid({rows: true_seconds(rows) for rows in MEASURED}).items():
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
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text())
    kept["seconds"] = {str(rows): seconds for rows, seconds in StepTimes({1: 0.02, 64: 0.024}).seconds.items()}
    file.write_text(json.dumps(kept))
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
        return Draft.from_tokens(wrong[start : start + max_tokens], hazard=0.01)


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


def test_without_a_folder_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    core = core_with(None, machine, model)
    assert machine.rows == []
    run_one(core, REQUEST)
    assert core.times.seconds == make_core().times.seconds == StepTimes().seconds
