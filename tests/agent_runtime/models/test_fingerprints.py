"""A kept fingerprint is the one that the weights have; changed weights are read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runtime.doctor.speed import find_fingerprint


class Weights:
    """What reading them gives, and how often they were read."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.num_read = 0

    def read(self) -> str:
        self.num_read += 1
        return self.fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "model"


def test_weights_are_read_once_until_they_change(folder: Path, tmp_path: Path) -> None:
    weights = Weights("aa")
    assert [find_fingerprint(folder, tmp_path / "cache", weights.read) for _ in range(3)] == ["aa"] * 3
    assert weights.num_read == 1
    (folder / "model.safetensors").write_bytes(b"other weights")
    weights.fingerprint = "bb"
    assert [find_fingerprint(folder, tmp_path / "cache", weights.read) for _ in range(2)] == ["bb"] * 2
    assert weights.num_read == 2
    other = tmp_path / "other"
    folder.rename(other)
    weights.fingerprint = "cc"
    assert find_fingerprint(other, tmp_path / "cache", weights.read) == "cc"


@pytest.mark.parametrize("damage", [b"", b"no hex", b"\xff"])
def test_a_damaged_one_is_computed_again(folder: Path, tmp_path: Path, damage: bytes) -> None:
    weights = Weights("aa")
    find_fingerprint(folder, tmp_path / "cache", weights.read)
    (kept,) = (tmp_path / "cache" / "fingerprints").iterdir()
    kept.write_bytes(damage)
    assert find_fingerprint(folder, tmp_path / "cache", weights.read) == "aa"
    assert weights.num_read == 2
    assert kept.read_bytes() == b"aa"


def test_without_a_cache_to_write_to_it_is_computed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    assert find_fingerprint(folder, tmp_path / "cache", Weights("aa").read) == "aa"
