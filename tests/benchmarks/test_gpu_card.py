"""The benchmarks of a card, on one: what is timed and printed there. Needs CUDA: `pytest -m gpu`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import main as gpu
from benchmarks.gpu.bounds import SHAPES
from benchmarks.gpu.card import CudaTimer
from benchmarks.gpu.edits import OWN_EDITS
from benchmarks.gpu.engine import find_fault

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_a_call_is_replayed_from_a_graph_and_one_that_waits_is_run() -> None:
    numbers = torch.zeros(1 << 20, device="cuda")
    timer = CudaTimer()
    captured = timer.time([lambda: numbers.add_(1)])
    assert captured.graphed
    assert captured.median_s > 0.0
    before = int(numbers[0].item())
    assert before > len(captured.seconds), "each run has done its work"
    waiting = timer.time([lambda: numbers[0].item()])
    assert not waiting.graphed
    assert waiting.median_s > 0.0


def test_more_work_takes_longer() -> None:
    one = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    timer = CudaTimer()
    single = timer.time([lambda: one[0] @ one[1]])
    double = timer.time([lambda: (one[0] @ one[1], one[1] @ one[0])])
    assert double.median_s > single.median_s


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's inductor
def test_every_op_is_measured_at_a_shape(tmp_path: Path) -> None:
    out = tmp_path / "ops.json"
    for name, shapes in (("swiglu", ["num_tokens=256"]), ("paged_attention", ["num_keys=1024,num_kv_heads=4"])):
        gpu(["--op", name, "--shapes", *shapes, "--json", str(out)])
        for row in json.loads(out.read_text())["rows"]:
            assert row["share"] is not None, row["ways"]
            assert all("median_s" in way for way in row["ways"].values()), row["ways"]


@pytest.mark.parametrize("name", SHAPES)
def test_the_engine_writes_on_the_card_what_it_writes_on_the_cpu(name: str) -> None:
    assert find_fault(SHAPES[name], torch.device("cuda"), 1) is None


def test_the_engine_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    few = ["--model", "1.5b", "--limit", "2", "--rounds", "1", "--most-context", "8192", "--cases", str(OWN_EDITS)]
    gpu([*few, "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert sum("edit" in row for row in rows) == 2
    assert all(row["values"] for row in rows if "8,192" in row.get("figure", ""))
    assert "no speed is shown" not in capsys.readouterr().out
