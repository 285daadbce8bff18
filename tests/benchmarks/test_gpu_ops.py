"""The benchmark of kernels, with an op that doubles; what ops say that they move and compute."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import ops as measuring
from benchmarks.gpu.__main__ import DTYPE, main
from benchmarks.gpu.card import STATED, Call, Ceilings, Timing
from benchmarks.gpu.ops import (
    choose_shapes,
    count_op,
    count_sets,
    make_input_sets,
    make_row,
    measure_op,
    render_op,
    render_ways,
)
from kernels.op import Cost, Inputs, Op, Shape, Variant, load_op
from kernels.paged_attention.batch import make_mask

CPU = torch.device("cpu")
"""Leading columns that no card is needed for."""


class FakeTimer:
    """Runs each call once, and finds a time for the name of what it was told to time next."""

    def __init__(self, seconds: float = 1e-3) -> None:
        self.timed = 0
        self._seconds = seconds

    def time(self, calls: Sequence[Call]) -> Timing:
        for call in calls:
            call()
        self.timed += 1
        return Timing((self._seconds,) * 3)


class Doubling:
    """An op: out = 2 x. Its kernel is right with BLOCK 1 and wrong with BLOCK 2."""

    name = "doubling"
    parity_shapes: Sequence[Shape] = ({"size": 3, "width": 4},)
    benchmark_shapes: Sequence[Shape] = ({"size": 3, "width": 4}, {"size": 9, "width": 4})
    space: Mapping[str, Sequence[int]] = {"BLOCK": (1, 2)}

    def __init__(self, block: int = 1, others: Mapping[str, Callable[[Tensor], Tensor]] | None = None) -> None:
        self._block = block
        self._others = others or {}

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        return True

    def default(self, shape: Shape) -> Variant:
        return {"BLOCK": self._block}

    def shape_class(self, shape: Shape) -> str:
        return "all"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        return {"x": torch.randn(shape["size"], shape["width"], generator=generator).to(dtype)}

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        return (inputs["x"] * (2.0 if (variant or self.default({}))["BLOCK"] == 1 else 2.1),)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return (2 * inputs["x"],)

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        return {name: lambda work=work: (work(inputs["x"]),) for name, work in self._others.items()}  # type: ignore[misc]

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        numbers = shape["size"] * shape["width"]
        return Cost(2 * numbers * dtype.itemsize, numbers)


CEILINGS = Ceilings("a card", 1e6, 1e6)


def measured(monkeypatch: pytest.MonkeyPatch, op: Op, timer: FakeTimer) -> measuring.Measured:
    """As on a card: the kernels of this op are torch's."""
    monkeypatch.setattr("kernels.parity.is_interpreting", lambda: True)
    return measure_op(op, op.benchmark_shapes[0], torch.float32, CPU, CEILINGS, timer)


def test_what_is_right_is_timed_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = FakeTimer()
    op = Doubling(others={"sum": lambda x: x + x, "off": lambda x: 2.002 * x, "broken": lambda x: x[:, None].view(7)})
    found = measured(monkeypatch, op, timer)
    assert [(way.name, way.timing is not None) for way in found.ways] == [
        ("default", True),
        ("sum", True),
        ("off", False),
        ("broken", False),
    ]
    assert timer.timed == 2
    assert found.share == pytest.approx(2 * 12 * 4 / 1e6 / 1e-3)
    lines = "\n".join(render_ways([found]))
    assert re.search(r"off +- no speed is shown: it is off our output by 0.00(1|099)", lines)
    assert re.search(r"broken +- RuntimeError: shape", lines)
    assert make_row(found)["ratio_best_peer"] == 1.0


class Adding(Doubling):
    """An op that works in place: x += 1."""

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        return (inputs["x"].add_(1),)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return (inputs["x"] + 1,)


def test_ways_that_work_in_place_are_compared_on_inputs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"right": lambda x: x.add_(1), "idle": lambda x: x, "right again": lambda x: x.add_(1)}
    found = measured(monkeypatch, Adding(others=others), FakeTimer())
    assert [way.name for way in found.ways if way.timing is None] == ["idle"]


def test_a_way_that_is_skipped_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.parity.is_interpreting", lambda: True)
    op = Doubling(others={"sum": lambda x: x + x, "slow": lambda x: 2 * x})
    found = measure_op(op, op.benchmark_shapes[0], torch.float32, CPU, CEILINGS, FakeTimer(), ["slow"])
    assert [way.name for way in found.ways] == ["default", "sum"]


def test_a_kernel_with_a_fault_has_no_speed_and_nobody_is_measured_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = FakeTimer()
    found = measured(monkeypatch, Doubling(block=2, others={"sum": lambda x: x + x}), timer)
    (way,) = found.ways
    assert timer.timed == 0
    assert found.share is None
    assert way.timing is None
    assert way.error == pytest.approx(0.05, rel=1e-4)
    assert "no speed is shown: it is off the reference by 0.05 (KERNELS_SEED=" in "\n".join(render_ways([found]))
    row = render_op([found]).split("\n")[-1]
    assert re.search(r"(\| +- ){3}\|$", row), "no measured column is filled"


def test_a_tuned_variant_that_is_wrong_stops_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.ops.get_variant", lambda *_: {"BLOCK": 2})
    timer = FakeTimer()
    found = measured(monkeypatch, Doubling(others={"sum": lambda x: x + x}), timer)
    assert [(way.name, way.timing is not None) for way in found.ways] == [("tuned", False), ("default", True)]
    assert timer.timed == 1


def test_equal_inputs_take_turns_until_they_outgrow_the_cache() -> None:
    assert count_sets(Cost(10, 0), 0) == 1
    assert count_sets(Cost(10, 0), 40) == 12
    assert count_sets(Cost(1, 0), 1 << 30) == measuring.MOST_SETS
    sets = make_input_sets(Doubling(), Doubling.benchmark_shapes[0], torch.float32, CPU, 3)
    assert [each["x"].tolist() for each in sets] == [sets[0]["x"].tolist()] * 3
    assert len({each["x"].data_ptr() for each in sets}) == 3


def test_a_time_is_the_median_and_the_spread_the_middle_of_the_runs() -> None:
    assert Timing((3.0, 1.0, 2.0)).median_s == 2.0
    assert Timing(tuple(map(float, range(1, 12)))).spread == pytest.approx((10 - 2) / 6)
    assert Timing((1.0,)).spread == 0.0


def test_shapes_are_chosen_by_some_of_their_sizes_or_made_of_all() -> None:
    op = Doubling()
    assert choose_shapes(op, []) == list(op.benchmark_shapes)
    assert choose_shapes(op, ["width=4"]) == list(op.benchmark_shapes)
    assert choose_shapes(op, ["size=9"]) == [op.benchmark_shapes[1]]
    assert choose_shapes(op, ["size=5,width=2"]) == [{"size": 5, "width": 2}]
    for text, why in (("size=5", "no timed shape"), ("depth=1", "has no size depth"), ("size", "is no shape")):
        with pytest.raises(ValueError, match=why):
            choose_shapes(op, [text])


def test_without_a_card_it_says_so_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        main(["--ops"])
    assert end.value.code == 2
    assert "there is no CUDA device, so nothing can be measured here" in capsys.readouterr().err


def test_a_run_on_a_card_takes_what_was_tuned_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it but the card: the folder of winners is asked for, each shape is measured, what was found is told."""
    folders: list[Path] = []
    for name, stands in (
        ("cuda_device", lambda: CPU),
        ("measure_card", lambda device, timer: CEILINGS),
        ("use_folder", folders.append),
        ("measure_op", lambda op, shape, dtype, device, ceilings, *_: count_op(op, shape, dtype, ceilings)),
    ):
        monkeypatch.setattr(f"benchmarks.gpu.__main__.{name}", stands)
    out = tmp_path / "ops.json"
    main(["--ops", "--op", "swiglu", "--shapes", "num_tokens=64", "--store", str(tmp_path), "--json", str(out)])
    assert folders == [tmp_path]
    found = json.loads(out.read_text())
    assert found["summary"]["measured"]
    assert found["summary"]["card"] == CEILINGS.name
    assert {row["shape"]["num_tokens"] for row in found["rows"]} == {64}
    assert str(CEILINGS) in capsys.readouterr().out


def test_what_is_asked_wrongly_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, why in (
        (["--shapes", "size=1"], "name it with --op"),
        (["--op", "swiglu", "--shapes", "depth=1", "--count-only"], "has no size depth"),
        (["--count-only", "--bandwidth", "0"], "must be above 0"),
        (["--op", "nothing"], "invalid choice"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert why in capsys.readouterr().err


def test_what_is_counted_is_printed_and_written_on_any_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ops.json"
    main(["--ops", "--op", "swiglu", "--count-only", "--bandwidth", "1", "--json", str(out)])
    op = load_op("swiglu")
    written = json.loads(out.read_text())
    assert not written["summary"]["measured"]
    assert [row["shape"] for row in written["rows"]] == [dict(shape) for shape in op.benchmark_shapes]
    first = op.cost(op.benchmark_shapes[0], DTYPE)
    assert written["rows"][0]["bytes"] == first.num_bytes
    assert written["rows"][0]["floor_s"] == first.floor_s(1e12, STATED.flops_s)
    lines = re.findall(r"^\| num_tokens=.*(?:\| +- ){3}\|$", capsys.readouterr().out, re.MULTILINE)
    assert len(lines) == len(op.benchmark_shapes)


def each_shape(*names: str) -> list[Any]:
    return [
        pytest.param(op, shape, id=f"{op.name}-{number}")
        for op in map(load_op, names)
        for number, shape in enumerate(op.parity_shapes)
    ]


def drawn(op: Op, shape: Shape) -> Inputs:
    return op.inputs(shape, DTYPE, torch.device("cpu"), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("op", "shape"), each_shape("rms_norm", "swiglu"))
def test_rows_are_read_and_written_once(op: Op, shape: Shape) -> None:
    inputs = drawn(op, shape)
    read = sum(value.numel() for value in inputs.values() if isinstance(value, Tensor))
    written = sum(output.numel() for output in op.reference(inputs))
    assert op.cost(shape, DTYPE).num_bytes == 2 * (read + written)


@pytest.mark.parametrize(("op", "shape"), each_shape("accept"))
def test_logits_are_read_once_and_few_words_written(op: Op, shape: Shape) -> None:
    inputs = drawn(op, shape)
    logits, draft, starts, draws = (inputs[name] for name in ("logits", "draft", "row_starts", "draws"))
    read = 2 * logits.numel() + 8 * len(draft) + 4 * len(starts)
    if draws is not None:
        read += draws.temperatures.nbytes + draws.numbers.nbytes
    outputs = op.reference(inputs)
    assert [len(output) for output in outputs] == [len(draft)] * 4 + [len(starts) - 1]
    assert op.cost(shape, DTYPE).num_bytes == read + 4 * sum(map(len, outputs))


@pytest.mark.parametrize(("op", "shape"), each_shape("paged_attention"))
def test_a_product_is_counted_for_each_row_and_what_it_sees(op: Op, shape: Shape) -> None:
    """Row by row, what the reference lets it see; the keys that anyone sees are read once for their KV head."""
    inputs = drawn(op, shape)
    batch, query, keys = inputs["batch"], inputs["query"], inputs["pool_keys"]
    starts, pairs, places = batch.query_starts.tolist(), 0, 0
    for index, seq_len in enumerate(batch.seq_lens.tolist()):
        seen = make_mask(batch, index, slice(starts[index], starts[index + 1]), seq_len, inputs["window"])
        pairs += int(seen.sum())
        places += int(seen.any(0).sum())
    _, num_heads, head_dim = query.shape
    counted = op.cost(shape, DTYPE)
    assert counted.num_flops == 2 * 2 * pairs * num_heads * head_dim
    num_pools = 1 if inputs["pool_values"] is None else 2
    data = num_pools * places * keys[0].nbytes + 2 * 2 * query.numel()
    pages = sum(-(-seq_len // batch.page_size) for seq_len in batch.seq_lens.tolist())
    told = 4 * (len(query) + 3 * batch.num_seqs + 1 + pages)
    assert data <= counted.num_bytes <= data + told
