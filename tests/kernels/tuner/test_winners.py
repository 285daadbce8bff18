"""What a wrapper launches its kernel with: the winner where it holds, the op's default anywhere else."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.tuner import get_variant, use_folder
from kernels.tuner.store import Store, Winner, Winners, compute_source_hash
from tests.kernels.tuner.planted import BEST, CARD, DEFAULT, SHAPES, VERSIONS, PlantedOp, search

VERSIONS_NOW = replace(VERSIONS, source=compute_source_hash("swiglu"))
BF16 = torch.bfloat16


@pytest.fixture
def winner(tmp_path: Path) -> Winner:
    """A search's, in `tmp_path`, for the kernel of today."""
    return search(tmp_path, versions=VERSIONS_NOW).run()


def test_the_winner_of_the_shapes_class_is_taken(tmp_path: Path, winner: Winner) -> None:
    winners = Winners(tmp_path, CARD, "3.9.0")
    assert winners.get_variant(PlantedOp(), {"rows": 64, "size": 7}, BF16) == BEST


def test_other_classes_dtypes_and_cards_run_by_default_and_that_is_said_once(
    tmp_path: Path, winner: Winner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    winners = Winners(tmp_path, CARD, "3.9.0")
    for _ in range(3):
        assert winners.get_variant(PlantedOp(), {"rows": 1, "size": 7}, BF16) == DEFAULT
        assert winners.get_variant(PlantedOp(), SHAPES[0], torch.float32) == DEFAULT
    assert [record.getMessage() for record in caplog.records] == [
        "swiglu runs by default for shapes that were not tuned on Planted Card 80GB; python -m kernels.tune swiglu "
        "does that"
    ]
    assert Winners(tmp_path, "Another Card", "3.9.0").get_variant(PlantedOp(), SHAPES[0], BF16) == DEFAULT


@pytest.mark.parametrize("change", ["kernel", "triton"])
def test_a_winner_of_another_program_is_not_taken(
    tmp_path: Path, winner: Winner, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    if change == "kernel":
        Store(tmp_path, CARD).write_winner(replace(winner, versions=VERSIONS))
    winners = Winners(tmp_path, CARD, "3.9.0" if change == "kernel" else "3.10.0")
    assert winners.get_variant(PlantedOp(), SHAPES[0], BF16) == DEFAULT
    assert "1 of 1 winners in" in caplog.text
    assert "another kernel or Triton" in caplog.text


@pytest.mark.parametrize(
    "variant",
    [
        {"block": 16, "num_warps": 16, "num_stages": 1},  # not valid
        {"block": 128, "num_warps": 4},
        BEST | {"num_ctas": 2},
    ],
)
def test_a_winner_that_cannot_run_the_shape_is_not_taken(
    tmp_path: Path, winner: Winner, variant: dict[str, int]
) -> None:
    Store(tmp_path, CARD).write_winner(replace(winner, best=replace(winner.best, variant=variant)))
    assert Winners(tmp_path, CARD, "3.9.0").get_variant(PlantedOp(), SHAPES[0], BF16) == DEFAULT


def test_a_damaged_file_is_ignored_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Store(tmp_path, CARD).path.write_text("{", encoding="utf-8")
    assert Winners(tmp_path, CARD, "3.9.0").get_variant(PlantedOp(), SHAPES[0], BF16) == DEFAULT
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "holds no winners for Planted Card 80GB" in warning.getMessage()


def test_a_winner_of_an_op_that_there_is_no_more_is_ignored(tmp_path: Path, winner: Winner) -> None:
    Store(tmp_path, CARD).write_winner(replace(winner, op="an_op_of_long_ago"))
    assert Winners(tmp_path, CARD, "3.9.0").get_variant(PlantedOp(), SHAPES[0], BF16) == BEST


def test_the_file_is_read_once_a_card(tmp_path: Path, winner: Winner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for no file, and a tuner that runs meanwhile changes nothing under it."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: CARD)
    monkeypatch.setattr("kernels.tuner.store.get_triton_version", lambda: "3.9.0")
    use_folder(tmp_path)
    try:
        card = torch.device("cuda", 0)
        assert get_variant(PlantedOp(), SHAPES[0], card) == BEST
        Store(tmp_path, CARD).path.unlink()
        assert get_variant(PlantedOp(), SHAPES[0], card, torch.bfloat16) == BEST
        assert get_variant(PlantedOp(), SHAPES[0], card, torch.float16) == DEFAULT
        assert get_variant(PlantedOp(), SHAPES[0], torch.device("cpu")) == DEFAULT
        use_folder(tmp_path)
        assert get_variant(PlantedOp(), SHAPES[0], card) == DEFAULT
    finally:
        use_folder(None)
    assert get_variant(PlantedOp(), SHAPES[0], card) == DEFAULT
