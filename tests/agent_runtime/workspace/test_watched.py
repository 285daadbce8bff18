"""A watched folder's tokens are taken where they are of just the text that is asked about; nobody waits for them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agent_runtime.workspace.index import WatchedIndex
from repo_cache.cache import RepoCache
from tests.models import RealModel

TEXT = "def f():\n    return 1\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text(TEXT)
    (root / "crlf.py").write_bytes(TEXT.replace("\n", "\r\n").encode())
    (root / "bom.py").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    return root


def test_a_file_is_known_by_path_and_content(root: Path, smollm2: RealModel, tmp_path: Path) -> None:
    files = WatchedIndex(root, smollm2.tokenizer, tmp_path / "store", pytest.fail)
    assert files.wait(60)
    found = files.find_tokens("src/a.py", TEXT)
    assert found is not None
    assert found.token_ids.tolist() == smollm2.tokenizer.encode(TEXT)
    assert files.find_tokens("./src/a.py", TEXT) is found
    assert files.find_tokens("src/a.py", TEXT + "\n") is None, "the file has another text by now"
    assert files.find_tokens("a.py", TEXT) is None
    assert files.find_tokens("", TEXT) is None
    for path in ("crlf.py", "bom.py"):
        assert files.find_tokens(path, TEXT) is None, "its tokens are those of its bytes"
    files.close()
    assert files.find_tokens("src/a.py", TEXT) is None
    files.close()


def test_the_folder_is_indexed_once_it_is_asked_about_and_nobody_waits(
    root: Path, smollm2: RealModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on, done = threading.Event(), threading.Event(), threading.Event()
    real = RepoCache.open

    def slowly(*arguments: object, **options: object) -> RepoCache:
        opened.set()
        assert go_on.wait(60)
        made = real(root, smollm2.tokenizer)
        monkeypatch.setattr(made, "close", lambda: (RepoCache.close(made), done.set()))
        return made

    monkeypatch.setattr("agent_runtime.workspace.index.RepoCache.open", slowly)
    files = WatchedIndex(root, smollm2.tokenizer)
    assert not opened.is_set()
    assert files.find_tokens("src/a.py", TEXT) is None
    assert opened.wait(60)
    assert files.find_tokens("src/a.py", TEXT) is None
    files.close()
    go_on.set()
    assert not files.wait(60)
    assert done.wait(60), "what comes too late is closed"


def test_a_folder_that_cannot_be_watched_is_told_once_and_stops_nobody(tmp_path: Path, smollm2: RealModel) -> None:
    said: list[str] = []
    files = WatchedIndex(tmp_path / "none", smollm2.tokenizer, say=said.append)
    assert not files.wait(60)
    assert files.find_tokens("a.py", TEXT) is None
    assert files.find_tokens("a.py", TEXT) is None
    (line,) = said
    assert "is not watched" in line
    files.close()
