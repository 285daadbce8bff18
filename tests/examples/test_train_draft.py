"""`python examples/train_draft` goes on where it was stopped, and its figures are those of the drafts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks.drafts import COMMITS
from engine.speculation.step_times import StepTimes
from tests.examples.programs import ROOT, load_program
from tests.models import RealModel

PROGRAM = ROOT / "examples" / "train_draft"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load_program("train_draft")


def test_the_summary_is_that_of_the_drafts(program: ModuleType) -> None:
    accepted = [[0, 1, 2], [], [0, 4, 0, 0]]
    found = program.summarise(accepted, step_s=0.1, times=StepTimes({1: 1.0, 2: 1.0, 1024: 1.0}))
    assert found["drafts"] == 7
    assert found["accepted"] == pytest.approx(7 / 7)
    assert found["low"] <= found["accepted"] <= found["high"]
    assert (found["right1"], found["right2"], found["right3"]) == pytest.approx((3 / 7, 2 / 3, 1 / 2))
    one, two = (1 + 3 / 7) / 1.1, (1 + 3 / 7 + 2 / 7) / 1.2
    assert found["speed"] == pytest.approx(max(1.0, one, two), rel=0.02)
    dear = program.summarise(accepted, step_s=1.0, times=StepTimes({1: 1.0, 1024: 1024.0}))
    assert dear["speed"] == 1.0, "no draft at all"


def test_a_head_learns_what_its_text_says(program: ModuleType) -> None:
    """Tokens that follow from the one before: the model's choice after token i is 7 i + 3, and a chain keeps right."""
    vocabulary, size, count = 64, 32, 3000
    ids = torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(1))
    embedding = torch.randn(vocabulary, size, generator=torch.Generator().manual_seed(2))

    def follow(tokens: torch.Tensor) -> torch.Tensor:
        return (7 * tokens + 3) % vocabulary

    class Model:
        class weights:  # noqa: N801 -- a field
            dtype = torch.float32

        @staticmethod
        def logits(hidden: torch.Tensor) -> torch.Tensor:
            return hidden @ embedding.T

    Model.weights.embedding = embedding  # type: ignore[attr-defined]

    class Loaded:
        class engine:  # noqa: N801 -- a field
            model = Model

    likely = follow(ids)[:, None].repeat(1, program.NUM_LIKELY).int()
    shares = torch.zeros(count, program.NUM_LIKELY)
    shares[:, 0] = 1.0
    states = program.States(ids, embedding[follow(ids)].half(), likely, shares.half(), torch.arange(count) == count - 1)
    # The chain's own text: each token is what follows the one before.
    chain = [5]
    for _ in range(20):
        chain.append(int(follow(torch.tensor(chain[-1]))))
    chained = torch.tensor(chain)
    answer = program.Answer(chain, embedding[chained], [True] * len(chain), [-1] * len(chain), "tests")
    trainer = program.Trainer(Loaded, [answer], likely[:, 0].long().bincount(minlength=vocabulary), 64)
    head, num_seen = trainer.train(states, count, 8)
    assert num_seen == 8 * (count - program.UNROLLED)
    (accepted,) = trainer.measure(head)
    untrained, _ = trainer.train(states, 600, 1)
    assert sum(accepted) > 2 * sum(trainer.measure(untrained)[0])
    assert sum(accepted) / len(accepted) > 1.0


@pytest.mark.long
@pytest.mark.skipif(not COMMITS.is_dir(), reason=f"{COMMITS} is absent")
def test_a_run_that_was_stopped_goes_on(smollm2: RealModel, tmp_path: Path) -> None:
    arguments = ["--model", smollm2.name, "--tokens", "3000", "--sizes", "2", "--epochs", "1", "--answers", "2"]

    def run() -> str:
        done = subprocess.run(
            [sys.executable, PROGRAM, *arguments, "--out", tmp_path],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout[done.stdout.rindex("| text") :]

    table = run()
    assert table.count("| code") == 2
    kept = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert {"answer-00.pt", "answer-01.pt", "code-0000.pt", "curve.png"} <= set(kept)
    first, last = sorted(tmp_path.glob("head-code-*.json"), key=lambda file: int(file.stem.split("-")[2]))
    last.unlink()
    assert run().splitlines()[:3] == table.splitlines()[:3]
    again = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    changed = {name for name in kept if kept[name] != again[name]}
    assert changed == {last.name, last.with_suffix(".pt").name, "curve.png"}
    assert first.name not in changed
