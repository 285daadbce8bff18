"""An engine measures its passes once a machine, and corrects the times by those that run; without a folder, never."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.core import EngineCore
from engine.engine_config import EngineConfig
from engine.model import Decoder
from engine.speculation.pass_times import PassTimes
from engine.types import GenerationRequest
from tests.engine.cores import PROMPT, alone, make_core, run_one, same, tiny_model
from tests.engine.drafters import AlwaysWrong, Oracle
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE

REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=40)


class Machine:
    """A clock that moves by 10 ms and one for each row in every pass of a model."""

    def __init__(self, model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.rows: list[int] = []
        real = model.forward_batch

        def timed(batch, kv):  # type: ignore[no-untyped-def]
            self.rows.append(len(batch.token_ids))
            self.now += 0.010 + 0.001 * len(batch.token_ids)
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
    for rows in (1, 16, 64, 100, 256, 1000):
        assert core.times(rows) == pytest.approx(0.010 + 0.001 * rows)
    assert machine.now < 1.6
    assert same(run_one(core, REQUEST), alone(model, REQUEST)), "what was measured has left nothing behind"
    measured = len(machine.rows)
    again = core_with(tmp_path, machine, model)
    assert machine.rows[measured:] == [1, 1, 1], "just to see whether the times can be right"
    assert again.times.seconds == pytest.approx(core.times.seconds, rel=0.3)


def test_times_of_a_loaded_start_are_measured_again_when_the_load_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    first = core_with(tmp_path, machine, model)
    assert first._timed._file is not None
    first._timed._file.write(PassTimes({1: 0.1, 64: 0.12}))
    for _ in range(2):
        core = core_with(tmp_path, machine, model)
        assert core.times(64) / core.times(1) == pytest.approx(0.074 / 0.011)


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


def test_passes_that_run_correct_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file says that rows cost next to nothing; single passes and accepted drafts show what they do."""
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    first = core_with(tmp_path, machine, model)
    assert first._timed._file is not None
    first._timed._file.write(PassTimes({1: 0.012, 1024: 0.014}))
    core = core_with(tmp_path, machine, model)
    target = alone(model, REQUEST).token_ids
    before = core.times(40) / core.times(1)
    for _ in range(12):
        run_one(core, replace(REQUEST, max_new_tokens=4))
        run_one(core, REQUEST, Oracle(target, hazard=1e-4))
    assert before < 1.1
    assert core.times(40) / core.times(1) > 1.2
    assert core_with(tmp_path, machine, model).times(40) / core.times(1) > 1.2, "and the file is corrected"


def test_passes_that_are_not_scored_throughout_teach_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, and drafts that were departed from, run rows without the LM head; forced ones need none."""
    model = tiny_model()
    machine = Machine(model, monkeypatch)
    core = core_with(tmp_path, machine, model)
    observed: list[int] = []
    monkeypatch.setattr(core.times, "observe", lambda rows, seconds: observed.append(rows))
    target = alone(model, REQUEST).token_ids
    run_one(core, replace(REQUEST, max_new_tokens=4), AlwaysWrong(target, VOCAB_SIZE))
    assert observed == [] or max(observed) == 1
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
