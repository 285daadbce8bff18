"""`hunk tune`: the fastest right variant is found, and a kernel is launched with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from math import inf, log2
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent_runtime.cli.bench import tune_command
from agent_runtime.errors import BadRequest
from kernels import tune
from kernels.op import OP_NAMES, Inputs, Op, Shape, Variant, load_op
from kernels.parity import get_run_seed
from kernels.tune import CardFailed, Search, Target, group_targets, list_variants
from kernels.winners import StoreError, Winner, get_path, get_variant, read_winners, use_folder
from tests.kernels.devices import CPU, INTERPRETED, ON_CARD

CARD = "Planted Card 80GB"
SWIGLU = load_op("swiglu")
SHAPE: Shape = {"num_tokens": 60, "ffn_size": 512}
BEST: Variant = {"BLOCK": 2048, "PER_PROCESSOR": 2, "num_warps": 8, "num_stages": 3}
"""The fastest of the planted times; not the default."""


def describe(variant: Variant) -> str:
    return json.dumps(dict(variant), sort_keys=True)


def count_steps(variant: Variant) -> float:
    """How far a variant is from the best."""
    return sum(abs(log2((1 + variant[name]) / (1 + size))) for name, size in BEST.items())


class PlantedCard:
    """Times that grow with the distance from BEST, by up to `noise` too long, and now and then ten times that."""

    def __init__(self, noise: float = 0.0) -> None:
        self._noise, self._random = noise, Random(get_run_seed())
        self.wrong: set[str] = set()
        self.faults: dict[str, BaseException] = {}
        self.timed: Counter[str] = Counter()
        self.checked: list[tuple[str, Shape]] = []

    def check(
        self, op: Op, shape: Shape, dtype: torch.dtype, device: torch.device, variant: Variant, seed: int
    ) -> float:
        self.checked.append((describe(variant), shape))
        if fault := self.faults.get(describe(variant)):
            raise fault
        return inf if describe(variant) in self.wrong else 1e-3

    def measure(self, op: Op, inputs: Inputs, variant: Variant, milliseconds: int) -> float:
        assert (describe(variant)) in {key for key, _ in self.checked}, "timed without a check"
        self.timed[describe(variant)] += 1
        noise = self._random.random() * (10 if self._random.random() < 0.05 else 1)
        return 1e-5 * (1 + 0.2 * count_steps(variant)) * (1 + self._noise * noise)


def make_target(*shapes: Shape) -> Target:
    (found,) = group_targets(SWIGLU, torch.bfloat16, shapes or (SHAPE,))
    return found


def search(card: PlantedCard, said: list[str] | None = None, seconds: float = inf) -> Winner | None:
    say = [].append if said is None else said.append
    return Search(make_target(), CPU, get_run_seed(), say, card.measure, card.check).run(seconds)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_fastest_is_found_under_noise(noise: float) -> None:
    winner = search(PlantedCard(noise))
    assert winner is not None
    assert winner.variant == BEST
    assert winner.default_seconds is not None
    assert winner.default_seconds > winner.seconds
    assert winner.num_variants == winner.num_tried == winner.num_right == len(list_variants(SWIGLU, [SHAPE]))


def test_a_wrong_variant_is_never_timed_and_never_wins() -> None:
    card = PlantedCard()
    card.wrong = {describe(BEST), describe(SWIGLU.default(SHAPE))}
    winner = search(card)
    assert winner is not None
    assert describe(winner.variant) not in card.wrong
    assert not card.wrong & set(card.timed)
    assert winner.default_seconds is None
    assert winner.num_right == winner.num_tried - 2


def test_one_that_is_wrong_at_full_size_only_does_not_win() -> None:
    class Large(PlantedCard):
        def check(self, op: Op, shape: Shape, *rest: Any) -> float:
            right = super().check(op, shape, *rest)
            return inf if shape == SHAPE and rest[2] == BEST else right

    winner = search(Large())
    assert winner is not None
    assert winner.variant != BEST
    assert count_steps(winner.variant) == min(
        count_steps(each) for each in list_variants(SWIGLU, [SHAPE]) if each != BEST
    )


def test_one_that_does_not_launch_is_passed_over() -> None:
    card = PlantedCard()
    card.faults = {describe(BEST): RuntimeError("out of resource: shared memory")}
    winner = search(card)
    assert winner is not None
    assert winner.variant != BEST


def test_a_reference_that_the_card_cannot_hold_is_said_and_is_no_fault() -> None:
    card, said = PlantedCard(), list[str]()
    card.faults = {describe(BEST): torch.OutOfMemoryError("CUDA out of memory")}
    winner = search(card, said)
    assert winner is not None
    assert winner.variant == BEST
    assert "the card cannot hold the reference of" in said[0]


def test_a_card_that_fails_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    card = PlantedCard()
    card.faults = {describe(BEST): RuntimeError("an illegal memory access\nmore")}

    def synchronize() -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(CardFailed, match=r"'BLOCK': 2048.*an illegal memory access$"):
        search(card)


def test_a_search_whose_time_is_over_has_tried_the_default() -> None:
    card = PlantedCard()
    winner = search(card, seconds=0)
    assert winner is not None
    assert winner.variant == SWIGLU.default(SHAPE)
    assert winner.num_tried == 1


def test_with_nothing_right_there_is_no_winner() -> None:
    card = PlantedCard()
    card.wrong = {describe(each) for each in list_variants(SWIGLU, [SHAPE])}
    assert search(card) is None


class TestInterpreted:
    pytestmark = INTERPRETED

    def test_variants_are_checked_against_the_reference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By Triton's interpreter; only the times are planted."""
        monkeypatch.setattr(SWIGLU.__class__, "space", {name: (size,) for name, size in BEST.items()})
        (target,) = group_targets(SWIGLU, torch.float32, [SHAPE])
        card = PlantedCard()

        def measure(op: Op, inputs: Inputs, variant: Variant, milliseconds: int) -> float:
            op.run(inputs, variant)
            return 1e-5 * (1 + count_steps(variant))

        winner = Search(target, CPU, get_run_seed(), card.checked.append, measure).run(inf)
        assert winner is not None
        assert winner.variant == BEST
        assert winner.num_right == 2


class TestOnCard:
    pytestmark = ON_CARD

    def test_a_search_finds_a_right_variant_that_the_wrapper_takes(self, tmp_path: Path) -> None:
        arguments = ["swiglu", "--shapes", "num_tokens=256", "--budget-seconds", "60", "--store", str(tmp_path)]
        assert tune.main(arguments) == 0
        card, shape = torch.device("cuda", torch.cuda.current_device()), {"num_tokens": 256, "ffn_size": 8960}
        (winner,) = read_winners(tmp_path, torch.cuda.get_device_name(card)).values()
        floor = SWIGLU.cost(shape, torch.bfloat16).floor_s(2e13, 1e16)  # beyond any card
        assert winner.default_seconds is not None
        assert floor < winner.seconds[0] <= winner.default_seconds[0] < 1.0
        use_folder(tmp_path)
        try:
            assert get_variant(SWIGLU, shape, card) == winner.variant
        finally:
            use_folder(None)

    def test_a_variant_that_asks_for_too_much_does_not_launch_and_the_next_one_does(self) -> None:
        generator = torch.Generator("cuda").manual_seed(get_run_seed())
        inputs = SWIGLU.inputs(SHAPE, torch.bfloat16, torch.device("cuda"), generator)

        def attempt(variant: Variant) -> object:
            return SWIGLU.run(inputs, variant)

        assert (
            tune.catch_launch(attempt, {"BLOCK": 1 << 21, "PER_PROCESSOR": 0, "num_warps": 4, "num_stages": 1}) is None
        )
        assert tune.catch_launch(attempt, SWIGLU.default(SHAPE)) is not None


# The command.


ARGUMENTS = ["swiglu", "--shapes", "num_tokens=64", "num_tokens=60", "num_tokens=1"]
"""Two classes."""


@pytest.fixture
def planted_card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A card with planted times and `free` of its memory; `fault` is raised by searches."""
    card = SimpleNamespace(free=0.99, fault=None)

    class PlantedSearch(Search):
        def run(self, seconds: float) -> Winner | None:
            if card.fault is not None:
                raise card.fault
            planted = PlantedCard()
            return Search(self.target, CPU, self.seed, self.say, planted.measure, planted.check).run(seconds)

    monkeypatch.setattr(tune, "Search", PlantedSearch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (card.free * 1e11, 1e11))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: CARD)
    return card


def test_hunk_tune_is_a_process_of_its_own() -> None:
    hunk = Path(sys.executable).with_name("hunk")
    done = subprocess.run([hunk, "tune", "swiglu", "--dry-run"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("swiglu bfloat16 ffn_size=8960 ")


def test_without_torch_hunk_tune_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.cli.bench.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match=r"pip install 'hunk-apply\[gpu\]'"):
        tune_command(["swiglu"])


def test_without_a_card_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.main(["swiglu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no CUDA device" in said.err
    assert "pip install 'hunk-apply[gpu]'" in said.err


def test_on_a_card_that_others_use_it_says_what_to_do(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted_card.free = 0.4
    assert tune.main([*ARGUMENTS, "--store", str(tmp_path)]) == 2
    assert "60% of the card's memory is in use" in capsys.readouterr().err


@pytest.mark.parametrize("name", OP_NAMES)
def test_a_dry_run_counts_every_ops_variants_anywhere(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert tune.main([name, "--dry-run"]) == 0
    said, op = capsys.readouterr().out, load_op(name)
    for shape in op.benchmark_shapes:
        assert f"{name} bfloat16 {op.shape_class(shape)}: " in said
    assert ": 1 variants" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "there is no op 'nope'"),
        (["swiglu", "--shapes", "rows=3"], "'rows=3' is no size of swiglu: write NAME=NUMBER, of ffn_size, is_gelu"),
        (["swiglu", "--shapes", "num_tokens=x"], "'num_tokens=x' is no size"),
        (["swiglu", "--shapes", ""], "'' is no size"),
    ],
)
def test_what_is_asked_wrongly_is_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_what_it_finds_is_what_a_kernel_is_launched_with(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path)]
    assert tune.main(["--list", *store]) == 0
    assert "nothing was tuned yet" in capsys.readouterr().out
    assert tune.main([*ARGUMENTS, *store]) == 0
    assert capsys.readouterr().out.count("times as long") == 2
    use_folder(tmp_path)
    try:
        for num_tokens in (1, 61):
            shape = {"num_tokens": num_tokens, "ffn_size": 8960}
            assert get_variant(SWIGLU, shape, torch.device("cuda", 0)) == BEST != SWIGLU.default(shape)
    finally:
        use_folder(None)
    assert tune.main(["--list", *store]) == 0
    said = capsys.readouterr().out
    assert "Planted Card 80GB: swiglu bfloat16 ffn_size=8960 tokens<=64" in said
    assert "not used" not in said
    assert tune.main(["--list", "--json", *store]) == 0
    assert [each["is_used"] for each in json.loads(capsys.readouterr().out)["winners"]] == [True, True]
    path = get_path(tmp_path, CARD)
    source = next(iter(read_winners(tmp_path, CARD).values())).source
    path.write_text(path.read_text(encoding="utf-8").replace(source, "old"), encoding="utf-8")
    assert tune.main(["--list", *store]) == 0
    assert capsys.readouterr().out.count("the kernel has changed since: not used") == 2


def test_a_lost_card_and_an_interruption_keep_what_was_found(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*ARGUMENTS, "--store", str(tmp_path)]
    assert tune.main([*ARGUMENTS[:3], "--store", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["winners"]) == 1
    planted_card.fault = CardFailed("an illegal memory access")
    assert tune.main(command) == 1
    assert "broke the card's context" in capsys.readouterr().err
    planted_card.fault = KeyboardInterrupt()
    assert tune.main(command) == 130
    assert "the winners that were found are kept" in capsys.readouterr().err
    assert len(read_winners(tmp_path, CARD)) == 1


def test_a_foreign_file_is_not_written_over(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = get_path(tmp_path, CARD)
    path.write_text("{}", encoding="utf-8")
    assert tune.main([*ARGUMENTS, "--store", str(tmp_path)]) == 2
    assert "move it away" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "{}"
    (tmp_path / "foreign.json").write_text("[]", encoding="utf-8")
    with pytest.raises(StoreError, match="move it away"):
        tune.list_all(tmp_path)
