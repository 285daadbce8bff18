"""The file of winners is written whole and read for one card only; wrappers launch the winner or the default."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread

import pytest
import torch

from agent_runtime.llm.opener import make_engine_config
from agent_runtime.models.config import LoadOptions, ModelSettings
from engine.core import EngineCore
from engine.engine_config import EngineConfig
from kernels.op import OP_NAMES, Shape, Variant, load_op
from kernels.winners import (
    StoreError,
    Winner,
    Winners,
    compute_source_hash,
    get_default_folder,
    get_path,
    get_variant,
    read_winners,
    use_folder,
    write_winner,
)
from tests.engine.runner.kernel_cores import by_kernels, kernel_model

CARD, TRITON, BF16 = "Planted Card 80GB", "3.9.0", torch.bfloat16
OP = load_op("swiglu")
SHAPE: Shape = {"num_tokens": 60, "ffn_size": 8960}
BEST: Variant = {"BLOCK": 4096, "PER_PROCESSOR": 8, "num_warps": 8, "num_stages": 3}
WINNER = Winner(
    op="swiglu",
    dtype="bfloat16",
    shape_class=OP.shape_class(SHAPE),
    variant=BEST,
    shapes=(SHAPE,),
    seconds=(1e-6,),
    default_seconds=(2e-6,),
    num_variants=100,
    num_tried=100,
    num_right=90,
    source=compute_source_hash("swiglu"),
    triton=TRITON,
)


def write_raw(folder: Path, *winners: object, **changes: object) -> Path:
    path = get_path(folder, CARD)
    path.write_text(json.dumps({"format": 2, "card": CARD, "winners": winners} | changes), encoding="utf-8")
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    other = replace(WINNER, shape_class="tokens=1", default_seconds=None)
    assert read_winners(tmp_path, CARD) == {}
    for each in (WINNER, other, replace(WINNER, seconds=(5e-7,))):
        write_winner(tmp_path / "made", CARD, each)
    assert read_winners(tmp_path / "made", CARD) == {WINNER.key: replace(WINNER, seconds=(5e-7,)), other.key: other}
    assert (tmp_path / "made" / "planted-card-80gb.json").is_file()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"winners": []}',
        '{"format": 1, "card": "Planted Card 80GB", "entries": {}}',
        '{"format": 2, "card": "Another", "winners": []}',
        '{"format": 2, "card": "Planted Card 80GB", "winners": [{"op": "swiglu"}]}',
        '{"format": 2, "card": "Planted Card 80GB", "winners": [null]}',
        "\udcff",
    ],
)
def test_a_file_of_another_form_is_named_and_left_as_it_is(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = get_path(tmp_path, CARD)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(StoreError, match=r"planted-card-80gb\.json holds no winners for Planted Card 80GB .* move it"):
        write_winner(tmp_path, CARD, WINNER)
    assert path.read_text(encoding="utf-8", errors="surrogateescape") == text
    assert Winners(tmp_path, CARD, TRITON).get_variant(OP, SHAPE, BF16) == OP.default(SHAPE)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("change", [{"variant": {"BLOCK": "128"}}, {"shapes": [3]}, {"other": 1}, {"seconds": ["x"]}])
def test_a_winner_of_other_values_is_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    write_raw(tmp_path, asdict(WINNER) | change)
    with pytest.raises(StoreError):
        read_winners(tmp_path, CARD)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_winner(tmp_path, CARD, WINNER)
    before = get_path(tmp_path, CARD).read_bytes()

    def broken(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="no space"):
        write_winner(tmp_path, CARD, replace(WINNER, shape_class="rows=1"))
    assert get_path(tmp_path, CARD).read_bytes() == before
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock"]


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    threads = [
        Thread(target=write_winner, args=(tmp_path, CARD, replace(WINNER, shape_class=f"rows={rows}")))
        for rows in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_winners(tmp_path, CARD)) == 8


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
    "moved/kernel.py": "import triton\nfrom kernels.turned.kernel import turn\n\n@triton.jit\ndef f(): ...\n",
    "moved/parts.py": "import triton\n\n@triton.jit\ndef part(): ...\n",
    "moved/op.py": "from kernels.moved import kernel\n",
    "turned/kernel.py": "import triton\n\n@triton.jit\ndef turn(): ...\n",
    "other/kernel.py": "import triton\n\n@triton.jit\ndef g(): ...\n",
}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("moved/kernel.py", True),
        ("moved/parts.py", True),
        ("moved/op.py", False),
        ("turned/kernel.py", True),
        ("other/kernel.py", False),
    ],
)
def test_only_what_is_compiled_for_an_op_counts(tmp_path: Path, name: str, counts: bool) -> None:
    for each, text in FILES.items():
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text(text, encoding="utf-8")
    before = compute_source_hash("moved", tmp_path)
    (tmp_path / name).write_text(FILES[name] + "# changed\n", encoding="utf-8")
    assert (compute_source_hash("moved", tmp_path) != before) == counts


def test_every_op_has_a_hash_of_its_own() -> None:
    assert len({compute_source_hash(name) for name in OP_NAMES}) == len(OP_NAMES)


def test_other_classes_dtypes_and_cards_run_by_default_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_winner(tmp_path, CARD, WINNER)
    winners, other = Winners(tmp_path, CARD, TRITON), {"num_tokens": 1, "ffn_size": 8960}
    for _ in range(3):
        assert winners.get_variant(OP, SHAPE | {"num_tokens": 50}, BF16) == BEST != OP.default(SHAPE)
        assert winners.get_variant(OP, other, BF16) == OP.default(other)
        assert winners.get_variant(OP, SHAPE, torch.float32) == OP.default(SHAPE)
    assert [record.getMessage() for record in caplog.records] == [
        "swiglu runs by default for shapes that were not tuned on Planted Card 80GB; `hunk tune swiglu` tunes them"
    ]
    assert Winners(tmp_path, "Another Card", TRITON).get_variant(OP, SHAPE, BF16) == OP.default(SHAPE)


@pytest.mark.parametrize("change", ["kernel", "triton", "op"])
def test_a_winner_of_another_program_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    changed: dict[str, Callable[[], Winner]] = {
        "kernel": lambda: replace(WINNER, source="older"),
        "triton": lambda: replace(WINNER, triton="3.8.0"),
        "op": lambda: replace(WINNER, op="an_op_of_long_ago"),
    }
    write_winner(tmp_path, CARD, changed[change]())
    assert Winners(tmp_path, CARD, TRITON).get_variant(OP, SHAPE, BF16) == OP.default(SHAPE)
    assert "1 of 1 winners in" in caplog.text


@pytest.mark.parametrize(
    "variant",
    [
        {"BLOCK": 4096, "PER_PROCESSOR": 8, "num_warps": 8},
        BEST | {"num_ctas": 2},
        BEST | {"BLOCK": 16, "num_warps": 16},  # not valid
    ],
)
def test_a_winner_that_cannot_run_the_shape_is_not_taken(tmp_path: Path, variant: dict[str, int]) -> None:
    write_winner(tmp_path, CARD, replace(WINNER, variant=variant))
    assert Winners(tmp_path, CARD, TRITON).get_variant(OP, SHAPE, BF16) == OP.default(SHAPE)


def test_the_file_is_read_once_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for no file, and a tuner that runs meanwhile changes nothing under it."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: CARD)
    monkeypatch.setattr("kernels.winners.get_triton_version", lambda: TRITON)
    write_winner(tmp_path, CARD, WINNER)
    card, default = torch.device("cuda", 0), OP.default(SHAPE)
    use_folder(tmp_path)
    try:
        assert get_variant(OP, SHAPE, card) == BEST
        get_path(tmp_path, CARD).unlink()
        assert get_variant(OP, SHAPE, card, torch.bfloat16) == BEST
        assert get_variant(OP, SHAPE, card, torch.float16) == default
        assert get_variant(OP, SHAPE, torch.device("cpu")) == default
        use_folder(tmp_path)
        assert get_variant(OP, SHAPE, card) == default
    finally:
        use_folder(None)
    assert get_variant(OP, SHAPE, card) == default


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
