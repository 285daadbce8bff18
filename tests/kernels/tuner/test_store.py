"""The file of winners is written as a whole and never taken for another card's; the hash of a kernel's source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from agent_runtime.models.config import ModelSettings
from kernels.op import OP_NAMES
from kernels.tuner.store import Store, StoreError, Winner, compute_source_hash, get_default_folder
from tests.kernels.tuner.planted import CARD, VERSIONS, search


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
