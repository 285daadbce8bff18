"""The file of winners is written whole and read for one card only; wrappers launch the winner or the default."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import torch

from agent_runtime.models.config import ModelSettings
from kernels.op import OP_NAMES
from kernels.tuner import get_variant, use_folder
from kernels.tuner.store import Store, StoreError, Winner, Winners, compute_source_hash, get_default_folder
from tests.kernels.tuner.planted import BEST, CARD, DEFAULT, SHAPES, VERSIONS, PlantedOp, search


@pytest.fixture
def winner(tmp_path: Path) -> Winner:
    return search(tmp_path / "made").run()


def test_what_is_put_is_found(tmp_path: Path, winner: Winner) -> None:
    other = replace(winner, shape_class="rows=1", default=None, is_complete=False)
    store = Store(tmp_path, CARD)
    assert store.read_winners() == {}
    for each in (winner, other):
        store.write_winner(each)
    assert Store(tmp_path, CARD).read_winners() == {winner.key: winner, other.key: other}
    assert store.path == tmp_path / "planted-card-80gb.json"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"winners": {}}',
        '{"format": 2, "card": "Planted Card 80GB", "entries": {}}',
        '{"format": 1, "card": "Another", "entries": {}}',
        '{"format": 1, "card": "Planted Card 80GB", "entries": {"swiglu bfloat16 rows=1": {"op": "swiglu"}}}',
        '{"format": 1, "card": "Planted Card 80GB", "entries": {"a": []}}',
        '{"format": 1, "card": "Planted Card 80GB", "entries": {"a": null}}',
        "\udcff",
    ],
)
def test_a_file_that_is_none_is_named_and_left_as_it_is(tmp_path: Path, winner: Winner, text: str) -> None:
    store = Store(tmp_path, CARD)
    store.path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(StoreError, match=r"planted-card-80gb\.json holds no winners for Planted Card 80GB .* move it"):
        store.read_winners()
    if '"a"' not in text and "swiglu" not in text:
        with pytest.raises(StoreError):
            store.write_winner(winner)
        assert store.path.read_text(encoding="utf-8", errors="surrogateescape") == text


@pytest.mark.parametrize("change", [{"best": {"variant": {"block": "128"}}}, {"shapes": [3]}, {"other": 1}])
def test_an_entry_of_other_values_is_none(tmp_path: Path, winner: Winner, change: dict[str, object]) -> None:
    raw = {"format": 1, "card": CARD, "entries": {winner.key: winner.to_json() | change}}
    store = Store(tmp_path, CARD)
    store.path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(StoreError):
        store.read_winners()


def test_a_winner_under_anothers_key_is_none(tmp_path: Path, winner: Winner) -> None:
    raw = {"format": 1, "card": CARD, "entries": {"swiglu float32 rows=64": winner.to_json()}}
    store = Store(tmp_path, CARD)
    store.path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(StoreError, match="stands for"):
        store.read_winners()


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, winner: Winner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, CARD)
    store.write_winner(winner)
    before = store.path.read_bytes()

    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="no space"):
        store.write_winner(replace(winner, shape_class="rows=1"))
    assert store.path.read_bytes() == before
    assert not [*tmp_path.glob("*.new")]


def test_tuners_that_write_at_once_lose_nothing(tmp_path: Path, winner: Winner) -> None:
    threads = [
        Thread(target=Store(tmp_path, CARD).write_winner, args=(replace(winner, shape_class=f"rows={rows}"),))
        for rows in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Store(tmp_path, CARD).read_winners()) == 8


def test_what_was_tried_is_kept_until_a_whole_search_has_its_winner(tmp_path: Path, winner: Winner) -> None:
    store = Store(tmp_path, CARD)
    outcomes = {'{"block": 16}': "wrong"}
    store.write_outcomes(winner.key, VERSIONS, outcomes)
    store.write_winner(replace(winner, is_complete=False))
    assert store.read_outcomes(winner.key, replace(VERSIONS, driver="later", torch="later")) == outcomes
    assert store.read_outcomes(winner.key, replace(VERSIONS, triton="later")) == {}
    assert store.read_outcomes("another key", VERSIONS) == {}
    store.write_winner(winner)
    assert store.read_outcomes(winner.key, VERSIONS) == {}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HUNK_CACHE": "/somewhere/hunk"},
        {"HUNK_CACHE": "relative"},
        {"HUNK_CACHE": "~/cache"},
        {"XDG_CACHE_HOME": "/var/cache/me"},
        {"XDG_CACHE_HOME": "relative"},
        {"HUNK_CACHE": "/a", "XDG_CACHE_HOME": "/b"},
    ],
)
def test_the_tuner_writes_where_the_service_reads(environ: dict[str, str]) -> None:
    assert get_default_folder(environ) == ModelSettings.from_env(environ).cache_dir / "kernels"


FILES = {
    "kernels/moved/kernel.py": "import triton\nfrom kernels.turned.kernel import turn\n\n@triton.jit\ndef f(): ...\n",
    "kernels/moved/parts.py": "import triton\n\n@triton.jit\ndef part(): ...\n",
    "kernels/moved/op.py": "from kernels.moved import kernel\n",
    "kernels/turned/kernel.py": "import triton\n\n@triton.jit\ndef turn(): ...\n",
    "kernels/other/kernel.py": "import triton\n\n@triton.jit\ndef g(): ...\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "kernels"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("moved/kernel", True),
        ("moved/parts", True),
        ("moved/op", False),
        ("turned/kernel", True),
        ("other/kernel", False),
    ],
)
def test_only_what_is_compiled_for_an_op_counts(package: Path, name: str, counts: bool) -> None:
    before = compute_source_hash("moved", package)
    path = package / f"{name}.py"
    path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert (compute_source_hash("moved", package) != before) == counts


def test_every_op_has_a_hash_of_its_own() -> None:
    assert len({compute_source_hash(name) for name in OP_NAMES}) == len(OP_NAMES)


# The variant that a wrapper launches.


VERSIONS_NOW = replace(VERSIONS, source=compute_source_hash("swiglu"))
BF16 = torch.bfloat16


@pytest.fixture
def current_winner(tmp_path: Path) -> Winner:
    """A search's, in `tmp_path`, for the kernel of today."""
    return search(tmp_path, versions=VERSIONS_NOW).run()


def test_the_winner_of_the_shapes_class_is_taken(tmp_path: Path, current_winner: Winner) -> None:
    winners = Winners(tmp_path, CARD, "3.9.0")
    assert winners.get_variant(PlantedOp(), {"rows": 64, "size": 7}, BF16) == BEST


def test_other_classes_dtypes_and_cards_run_by_default_and_that_is_said_once(
    tmp_path: Path, current_winner: Winner, caplog: pytest.LogCaptureFixture
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
    tmp_path: Path, current_winner: Winner, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    if change == "kernel":
        Store(tmp_path, CARD).write_winner(replace(current_winner, versions=VERSIONS))
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
    tmp_path: Path, current_winner: Winner, variant: dict[str, int]
) -> None:
    Store(tmp_path, CARD).write_winner(replace(current_winner, best=replace(current_winner.best, variant=variant)))
    assert Winners(tmp_path, CARD, "3.9.0").get_variant(PlantedOp(), SHAPES[0], BF16) == DEFAULT


def test_a_damaged_file_is_ignored_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Store(tmp_path, CARD).path.write_text("{", encoding="utf-8")
    assert Winners(tmp_path, CARD, "3.9.0").get_variant(PlantedOp(), SHAPES[0], BF16) == DEFAULT
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "holds no winners for Planted Card 80GB" in warning.getMessage()


def test_a_winner_of_an_op_that_there_is_no_more_is_ignored(tmp_path: Path, current_winner: Winner) -> None:
    Store(tmp_path, CARD).write_winner(replace(current_winner, op="an_op_of_long_ago"))
    assert Winners(tmp_path, CARD, "3.9.0").get_variant(PlantedOp(), SHAPES[0], BF16) == BEST


def test_the_file_is_read_once_a_card(tmp_path: Path, current_winner: Winner, monkeypatch: pytest.MonkeyPatch) -> None:
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
