"""The catalogue is consistent in itself, and a slip of a name is answered with the name."""

from __future__ import annotations

import re

import pytest

from agent_runtime.errors import UnknownModel
from agent_runtime.models.config import CATALOGUE, CatalogueEntry, find_entry, get_session_reuse


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_entry_is_consistent(entry: CatalogueEntry) -> None:
    num_parts = len(entry.registry_parts)
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert (num_parts - 1) * entry.part_bytes < entry.num_bytes <= num_parts * entry.part_bytes
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part) for part in entry.registry_parts)
    assert find_entry(entry.name) is entry


def test_names_and_files_are_unique() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len({entry.sha256 for entry in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("smolm2", "smollm2-135m"),
        ("SmolLM2-135M", "smollm2-135m"),
        ("qwen2.5-coder-1.5", "qwen2.5-coder-1.5b"),
        ("qwen-coder-0.5b", "qwen2.5-coder-0.5b"),
    ],
)
def test_unknown_name_tells_the_nearest(slip: str, meant: str) -> None:
    with pytest.raises(UnknownModel, match=f"did you mean '{meant}'"):
        find_entry(slip)


@pytest.mark.parametrize("name", ["xyz", ""])
def test_name_near_nothing_tells_them_all(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        find_entry(name)
    assert all(entry.name in str(caught.value) for entry in CATALOGUE)


def test_sessions_follow_changes_as_was_measured_for_the_model() -> None:
    assert get_session_reuse("qwen2.5-coder-0.5b") == "fast"
    assert get_session_reuse("models/of-somebody-else") == "exact"
