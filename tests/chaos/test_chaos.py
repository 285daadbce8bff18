"""A short chaos run finds no fault in the cache, and finds the fault of a cache that misses a change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import open_tokenizer
from repo_cache.cache import RepoCache
from repo_cache.tokenizer import BPETokenizer
from repo_cache.watcher import Watcher
from tests.chaos.chaos import Report, run_chaos


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return open_tokenizer("smollm2-135m", ModelSettings.from_env(os.environ))


def short_chaos(folder: Path, tokenizer: BPETokenizer, **changes: Any) -> Report:
    options: dict[str, Any] = {"seed": 1, "operations": 300, "a_round": 100, "seconds": 120.0, "patience_s": 30.0}
    return run_chaos(folder, tokenizer, **options | {"polling": None} | changes, say=lambda line: None)


@pytest.mark.parametrize("polling", [None, True])
def test_a_short_chaos_ends_with_the_snapshot_from_scratch(
    tmp_path: Path, tokenizer: BPETokenizer, polling: bool | None
) -> None:
    report = short_chaos(tmp_path, tokenizer, polling=polling, operations=300 if polling is None else 100)
    assert report.ok, report.failures
    assert report.rounds == report.operations // 100
    assert report.files > 5
    assert report.versions > 1
    assert {"create", "edit", "replace", "delete", "rename"} <= report.counts.keys()


def test_a_watcher_that_says_nothing_is_found_out(
    tmp_path: Path, tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watcher, "start", lambda self: None)
    report = short_chaos(tmp_path, tokenizer, patience_s=0.2)
    assert not report.ok
    assert any("not known" in failure for failure in report.failures)


def test_a_lost_file_is_named(tmp_path: Path, tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    hear = RepoCache._on_batch

    def forgetful(self: RepoCache, batch: Any) -> None:
        hear(self, type(batch)(frozenset(path for path in batch.paths if not path.endswith(".py")), notices=()))

    monkeypatch.setattr(RepoCache, "_on_batch", forgetful)
    report = short_chaos(tmp_path, tokenizer, patience_s=0.5)
    assert any(".py: not known" in failure for failure in report.failures)
