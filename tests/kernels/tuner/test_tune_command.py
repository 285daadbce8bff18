"""`python -m kernels.tune`: its answer without a card, and that a kernel is launched with the winner on one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent_runtime.llm.opener import make_engine_config
from agent_runtime.models.config import LoadOptions
from engine.core import EngineCore
from engine.engine_config import EngineConfig
from kernels import tune
from kernels.op import OP_NAMES, load_op
from kernels.tuner import get_variant, use_folder
from kernels.tuner.search import CardFailed, Search, get_variant_key, group_targets, list_valid_variants
from kernels.tuner.store import Store, Versions, compute_source_hash
from tests.engine.runner.kernel_cores import by_kernels, kernel_model
from tests.kernels.tuner.planted import CARD, PlantedTimer

ARGUMENTS = ["swiglu", "--shapes", "num_tokens=64", "num_tokens=60", "num_tokens=1"]
"""Two classes."""


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def planted_card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A card on which `best` of each target's variants is fastest; `fault` is raised by the first search's checks."""
    card = SimpleNamespace(best=-1, fault=None)

    def search_on(device: Any, target: Any, folder: Path, budget: Any, say: Any) -> Search:
        variants = list_valid_variants(target)
        best = get_variant_key(variants[card.best])

        def check(variant: Any, shape: Any) -> float:
            if card.fault is not None:
                raise card.fault
            return 0.0

        timer = PlantedTimer(lambda variant: (1e-6 if get_variant_key(variant) == best else 2e-6,) * len(target.shapes))
        versions = Versions(compute_source_hash(target.op.name), "550.1", torch.__version__, "3.9.0")
        return Search(target, variants, check, 1e-2, timer, Store(folder, CARD), versions, budget, 1, say)

    monkeypatch.setattr(tune, "make_search", search_on)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: CARD)
    monkeypatch.setattr("kernels.tuner.store.get_triton_version", lambda: "3.9.0")
    return card


def test_without_a_card_it_says_what_to_do(no_card: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(["swiglu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no CUDA device" in said.err
    assert "pip install 'hunk-apply[gpu]'" in said.err


@pytest.mark.parametrize("name", OP_NAMES)
def test_a_dry_run_counts_every_ops_variants_anywhere(
    no_card: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert tune.main([name, "--dry-run"]) == 0
    said = capsys.readouterr().out
    op = load_op(name)
    assert said.startswith(f"{name}: ")
    for shape in op.benchmark_shapes:
        assert f"{name} bfloat16 {op.shape_class(shape)}: " in said
    assert ": 0 valid" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which op? There are paged_attention"),
        (["nope"], "there is no op 'nope'"),
        (["swiglu", "--shapes", "rows=3"], "'rows=3' is no size of swiglu: write NAME=NUMBER, of ffn_size, num_tokens"),
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
    assert tune.main([*ARGUMENTS, "--store", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("2.00 times as long") == 2
    op, card = load_op("swiglu"), torch.device("cuda", 0)
    use_folder(tmp_path)
    try:
        for num_tokens in (1, 61):
            shape = {"num_tokens": num_tokens, "ffn_size": 8960}
            found = get_variant(op, shape, card)
            assert found == {"BLOCK": 4096, "PER_PROCESSOR": 8, "num_warps": 8, "num_stages": 3}
            assert found != op.default(shape)
    finally:
        use_folder(None)
    assert tune.main(["--list", "--store", str(tmp_path)]) == 0
    assert "swiglu bfloat16 ffn_size=8960 tokens<=64" in capsys.readouterr().out


def test_a_list_says_which_winners_are_of_a_kernel_that_was_and_which_files_are_none(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune.main(["--list", "--store", str(tmp_path)]) == 0
    assert "nothing was tuned yet" in capsys.readouterr().out
    tune.main([*ARGUMENTS, "--store", str(tmp_path)])
    path = Store(tmp_path, CARD).path
    path.write_text(path.read_text(encoding="utf-8").replace(compute_source_hash("swiglu"), "old"), encoding="utf-8")
    (tmp_path / "foreign.json").write_text("[]", encoding="utf-8")
    capsys.readouterr()
    assert tune.main(["--list", "--store", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("the kernel has changed since: not used") == 2
    assert "foreign.json: not read" in said


def test_a_lost_card_and_an_interruption_end_it_with_what_to_do(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*ARGUMENTS, "--store", str(tmp_path)]
    planted_card.fault = CardFailed("an illegal memory access")
    assert tune.main(command) == 1
    assert "the same command goes on without it" in capsys.readouterr().err
    planted_card.fault = KeyboardInterrupt()
    assert tune.main(command) == 130
    assert "goes on from here" in capsys.readouterr().err
    planted_card.fault = None
    assert tune.main(command) == 0
    entries = json.loads(Store(tmp_path, CARD).path.read_text(encoding="utf-8"))["entries"]
    assert [entry["outcomes"].get("failed the card") for entry in entries.values()] == [1, None]


def test_a_time_that_is_over_is_a_failure_only_where_nothing_was_found(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune.main([*ARGUMENTS, "--store", str(tmp_path), "--budget-seconds", "0"]) == 1
    num_valid = len(
        list_valid_variants(group_targets(load_op("swiglu"), torch.bfloat16, [{"num_tokens": 64, "ffn_size": 8960}])[0])
    )
    assert f"no variant is right ({num_valid} not tried)" in capsys.readouterr().err


def test_a_foreign_store_is_not_written_over(
    planted_card: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Store(tmp_path, CARD).path
    path.write_text("{}", encoding="utf-8")
    assert tune.main([*ARGUMENTS, "--store", str(tmp_path)]) == 2
    assert "move it away" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "{}"


def test_the_engine_takes_winners_from_the_services_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    monkeypatch.setattr("engine.runner.cuda_runner.use_folder", taken.append)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    folder = make_engine_config(LoadOptions(), tmp_path).kernels_dir
    assert folder == tmp_path / "kernels"
    with by_kernels():
        for kernels_dir in (folder, None):
            EngineCore(kernel_model(), [], EngineConfig(max_seq_len=32, kernels_dir=kernels_dir))
    assert taken == [folder]
    assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton"), "what is compiled is kept there, too"
