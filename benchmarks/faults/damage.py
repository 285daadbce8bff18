"""Kills, full disks and damaged caches: acknowledged writes must be there, and all files be of one write."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.faults.setting import Setting, count_lost
from benchmarks.harness import Row, say
from benchmarks.serve.service import Running

NUM_FILES = 6
PADDING = "# " + "x" * 98 + "\n"
NUM_PADDED = 150
"""Lines of each file, of 15 KB: six are still edited in the service itself, and a kill has time to meet a write."""


def make_files(root: Path) -> None:
    """Files that each edit changes all at once."""
    for at in range(NUM_FILES):
        (root / f"{at}.py").write_text(f"number = 0\n{PADDING * NUM_PADDED}")


def make_edit(number: int) -> str:
    """Return an edit of all files, from one number to the next."""
    parts = [f"*** Update File: {at}.py\n-number = {number}\n+number = {number + 1}\n" for at in range(NUM_FILES)]
    return f"*** Begin Patch\n{''.join(parts)}*** End Patch\n"


def read_numbers(root: Path) -> set[int]:
    """Of all files, -1 for one that is torn or gone."""
    found = set()
    for at in range(NUM_FILES):
        path = root / f"{at}.py"
        match = re.fullmatch(rf"number = (\d+)\n({re.escape(PADDING)}){{{NUM_PADDED}}}", _make_text(path))
        found.add(int(match[1]) if match else -1)
    return found


def count_torn(root: Path) -> int:
    """1 where the files are not all of one write, and one for each temporary file."""
    return (len(read_numbers(root)) > 1 or -1 in read_numbers(root)) + len(list(root.glob(".*.hunk")))


def _make_text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def kill_in_writes(setting: Setting, count: int, seed: int) -> Row:
    """SIGKILL in the middle of writes, and a start: all files are of one write, and none before the acknowledged."""
    say("kills ...")
    rng, root = random.Random(seed), setting.folder / "killed"
    root.mkdir()
    make_files(root)
    acknowledged = broken = torn = lost = writes = 0
    for at in range(count + 1):
        broken += bool(list(root.glob(".*.hunk")))
        with setting.open_service("--no-watch", root=root) as service:
            torn += count_torn(root)
            number = max(read_numbers(root))
            lost += max(0, acknowledged - number)
            if at == count:
                break
            try:
                with setting.client(service) as client:
                    _write(client, number)
                    threading.Timer(rng.uniform(0.0, 0.3), os.kill, (service.pid, signal.SIGKILL)).start()
                    while True:
                        number += 1
                        writes += 1
                        _write(client, number)
            except httpx.HTTPError:
                acknowledged = number
    return {
        "what": f"{count} kills, {broken} of them within a write",
        "writes": writes,
        "lost_updates": lost,
        "torn": torn,
    }


def fill_disk(setting: Setting) -> list[Row]:
    """No room for the new files, and files that may not be as long: what is refused is not begun."""
    rows = []
    with _mount_small_disk(setting.folder / "disk") as disk:
        if disk is None:
            rows.append({"what": "a full disk: skipped, as no tmpfs can be mounted here"})
        else:
            filler = disk / "filler"
            rows.append(_write_when_full("a full disk", setting, disk / "root", lambda _: _fill(filler), filler.unlink))
    rows.append(
        _write_when_full("a limit of file sizes", setting, setting.folder / "limited", _limit_files, lambda: None)
    )
    return rows


def _write_when_full(
    name: str, setting: Setting, root: Path, fill: Callable[[Running], None], empty: Callable[[], None]
) -> Row:
    say(f"{name} ...")
    root.mkdir()
    make_files(root)
    statuses: Counter[str] = Counter()
    torn = 0
    with setting.open_service("--no-watch", root=root) as service, setting.client(service) as client:
        for number, is_full in ((0, False), (1, True), (1, True)):
            if is_full:
                fill(service)
            statuses[str(client.post("/apply", json=_make_body(number)).status_code)] += 1
            torn += count_torn(root) + (read_numbers(root) != {1})
        empty()
    return {"what": name, "statuses": dict(statuses), "torn": torn, "lost_requests": count_lost(statuses)}


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def _limit_files(service: Running) -> None:
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (8_000, resource.RLIM_INFINITY))


@contextmanager
def _mount_small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of 512 KiB; None where none may be mounted."""
    folder.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]
    try:
        is_mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
    except OSError:
        is_mounted = False
    try:
        yield folder if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", folder], check=False)


def damage_caches(setting: Setting, seed: int) -> list[Row]:
    """Damage every file of the cache folder in one way, and start: requests are answered, files whole."""
    rng, root, whole = random.Random(seed), setting.folder / "beside", setting.folder / "cache-whole"
    root.mkdir()
    make_files(root)
    with setting.open_service(root=root, cache=whole) as service, setting.client(service) as client:  # fills it
        _write(client, 0)
        client.get("/workspaces/default/snapshot")
        time.sleep(0.5)
    journal = next((whole / "journals").glob("*"))
    (journal / "0123456789abcdef.json").write_text('{"version": 2}')
    rows = []
    for name, damage in _DAMAGES.items():
        say(f"a damaged cache: {name} ...")
        cache = setting.folder / "cache-damaged"
        shutil.rmtree(cache, ignore_errors=True)
        shutil.copytree(whole, cache)
        for path in [path for path in cache.rglob("*") if path.is_file()]:
            damage(path, rng)
        rows.append(_restart_on_damage(f"a damaged cache: {name}", setting, root, cache))
    return rows


def _restart_on_damage(name: str, setting: Setting, root: Path, cache: Path) -> Row:
    make_files(root)
    statuses: Counter[str] = Counter()
    try:
        with setting.open_service(root=root, cache=cache) as service, setting.client(service) as client:
            statuses[str(client.post("/apply", json=_make_body(0)).status_code)] += 1
            statuses[str(client.get("/workspaces/default/snapshot").status_code)] += 1
            is_written = read_numbers(root) == {1}
    except (RuntimeError, httpx.HTTPError) as error:
        return {"what": f"{name}: {error}", "lost_requests": 2, "torn": count_torn(root)}
    lost = count_lost(statuses)
    return {
        "what": name,
        "statuses": dict(statuses),
        "lost_requests": lost,
        "lost_updates": int(statuses["200"] == 2 and not is_written),
        "torn": count_torn(root),
    }


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(len(content) // 200 + 1):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


_DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "empty files": lambda path, rng: path.write_bytes(b""),
    "half of each file": lambda path, rng: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped bits": _flip,
    "random bytes": lambda path, rng: path.write_bytes(rng.randbytes(path.stat().st_size)),
    "another JSON": lambda path, rng: path.write_bytes(b"[]"),
    "folders": lambda path, rng: _become_folder(path),
}


def _write(client: httpx.Client, number: int) -> None:
    client.post("/apply", json=_make_body(number)).raise_for_status()


def _make_body(number: int) -> dict[str, Any]:
    return {"edit": make_edit(number), "write": True, "mode": "deterministic"}
