"""What is known of a model's file, and that `verify` believes nothing of it."""

from __future__ import annotations

import os

import pytest

from agent_runtime.errors import CorruptModel, ModelUnavailable
from agent_runtime.models.store import ModelStore, ensure_verified, verify
from tests.agent_runtime.models.conftest import CONTENT, ENTRY


@pytest.fixture
def pulled(store: ModelStore) -> ModelStore:
    store.folder(ENTRY).mkdir(parents=True)
    store.path(ENTRY).write_bytes(CONTENT)
    return store


def test_states(store: ModelStore) -> None:
    assert store.state(ENTRY) == "absent"
    store.folder(ENTRY).mkdir(parents=True)
    store.partial_path(ENTRY).write_bytes(CONTENT[:9])
    assert store.state(ENTRY) == "partial"
    store.partial_path(ENTRY).write_bytes(CONTENT)
    store.partial_path(ENTRY).rename(store.path(ENTRY))
    assert store.state(ENTRY) == "present"
    assert verify(ENTRY, store) == store.path(ENTRY)
    assert store.state(ENTRY) == "verified"
    store.record_path(ENTRY).write_text("not json")
    assert store.state(ENTRY) == "present"


def test_absent_model_tells_how_to_have_it(store: ModelStore) -> None:
    for check in (ensure_verified, verify):
        with pytest.raises(ModelUnavailable, match="run `hunk models pull tiny`"):
            check(ENTRY, store)


def test_changed_file_is_noticed(pulled: ModelStore) -> None:
    ensure_verified(ENTRY, pulled)
    pulled.path(ENTRY).write_bytes(CONTENT[:-1] + b"\0")
    with pytest.raises(CorruptModel, match=r"is damaged.*`hunk models pull tiny` replaces it"):
        ensure_verified(ENTRY, pulled)


def test_verify_hashes_even_where_size_and_time_are_right(pulled: ModelStore) -> None:
    verify(ENTRY, pulled)
    before = pulled.path(ENTRY).stat()
    pulled.path(ENTRY).write_bytes(CONTENT[:-1] + b"\0")
    os.utime(pulled.path(ENTRY), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ensure_verified(ENTRY, pulled)  # a gigabyte is not hashed at every start
    with pytest.raises(CorruptModel):
        verify(ENTRY, pulled)
    with pytest.raises(CorruptModel):
        ensure_verified(ENTRY, pulled)
