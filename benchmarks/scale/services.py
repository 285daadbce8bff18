"""A service with replicas beside one without: what the way to a replica costs, and what is lost when replicas die."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.harness import say
from benchmarks.serve.service import HUNK, Running, open_service

FILE = "".join(f"def scale_{at}(value):\n    return {at} * value\n\n\n" for at in range(10)).rstrip() + "\n"
EDIT = "<<<<<<< SEARCH\n    return 3 * value\n=======\n    return 33 * value\n>>>>>>> REPLACE\n"
TASK = "multiply by 33 in scale_3"
CHAT = [{"role": "user", "content": "Say one word."}]

MOST_KILLS = 4

WAIT_SECONDS = 120.0
"""How long a client sends a request again while replicas start anew."""


def measure_overhead(model: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the times of a rule edit and of a cached chat of one token, in turns with a service without replicas."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with (
            open_service(model, root, "--context", "4096") as plain,
            open_service(model, root, "--context", "4096", "--replicas", "1") as replicated,
        ):
            clients = [
                httpx.Client(base_url=f"http://127.0.0.1:{each.port}", timeout=60) for each in (plain, replicated)
            ]
            edit = {"original": FILE, "edit": EDIT, "path": "scale.py"}
            chat = {"model": "hunk", "messages": CHAT, "temperature": 0, "max_tokens": 1}
            for name, path, body in (("rule edit", "/apply", edit), ("model request", "/v1/chat/completions", chat)):
                say(f"{name}: {repeats} in turns")
                seconds: list[list[float]] = [[], []]
                for at in range(repeats + 3):
                    for client, into in list(zip(clients, seconds, strict=True))[:: 1 if at % 2 else -1]:
                        started = time.perf_counter()
                        client.post(path, json=body).raise_for_status()
                        if at >= 3:
                            into.append(time.perf_counter() - started)
                ours, theirs = (1e3 * statistics.median(each) for each in (seconds[1], seconds[0]))
                yield {
                    "part": "overhead",
                    "what": name,
                    "plain_ms": round(theirs, 2),
                    "replicas_ms": round(ours, 2),
                    "ratio": round(ours / theirs, 3),
                    "more_ms": round(ours - theirs, 2),
                }


def measure_kills(model: str, num_edits: int) -> dict[str, Any]:
    """Have a model write edits of many files while replicas are killed; return what was lost or written twice."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for at in range(num_edits):
            (root / f"scale{at}.py").write_text(FILE)
        with open_service(model, root, "--context", "4096", "--replicas", "2") as service:
            answers, killed = _edit_and_kill(service, num_edits)
        logged = subprocess.run([HUNK, "log", "--json", "--root", root], capture_output=True, check=True, text=True)
        changed = [(root / f"scale{at}.py").read_text() != FILE for at in range(num_edits)]
    paths = [file["path"] for write in json.loads(logged.stdout)["writes"] for file in write["files"]]
    written = [answer is not None and answer.is_success and answer.json()["written"] for answer in answers]
    return {
        "part": "kills",
        "edits": num_edits,
        "killed": killed,
        "written": sum(written),
        "refused": sum(answer is not None and answer.status_code == 422 for answer in answers),
        "lost": sum(answer is None or answer.status_code not in (200, 422) for answer in answers)
        + sum(one and not other for one, other in zip(written, changed, strict=True)),
        "doubled": len(paths)
        - len(set(paths))
        + sum(other and not one for one, other in zip(written, changed, strict=True)),
    }


def _edit_and_kill(service: Running, num_edits: int) -> tuple[Sequence[httpx.Response | None], int]:
    """Send the edits, four at a time; kill a replica whenever two have been up for a while."""
    answers: list[httpx.Response | None] = [None] * num_edits
    left, lock, killed = iter(range(num_edits)), threading.Lock(), 0

    def send() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=WAIT_SECONDS) as client:
            while True:
                with lock:
                    at = next(left, None)
                if at is None:
                    return
                answers[at] = _send_until_answered(client, f"scale{at}.py")
                say(f"  edit {at}: {_describe(answers[at])}")

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(1.0)
        with suppress(httpx.HTTPError):
            up = httpx.get(f"http://127.0.0.1:{service.port}/stats", timeout=10).json().get("replicas", [])
            if len(up) > 1 and killed < MOST_KILLS:
                time.sleep(2.0)
                killed += _kill_busiest(service)
    for thread in threads:
        thread.join()
    return answers, killed


def _kill_busiest(service: Running) -> int:
    """Kill the replica that works most now by SIGKILL; return how many were killed."""
    children = psutil.Process(service.pid).children(recursive=True)
    replicas = [each for each in children if "ServeReplica" in " ".join(each.cmdline())]
    if not replicas:
        return 0
    busiest = max(replicas, key=lambda each: each.cpu_percent(0.2))
    os.kill(busiest.pid, signal.SIGKILL)
    say(f"  killed {busiest.pid}")
    return 1


def _send_until_answered(client: httpx.Client, path: str) -> httpx.Response | None:
    """Send an edit, and again after 503 and 429; None if no answer came."""
    body = {"edit": EDIT, "path": path, "mode": "model", "draft": "none", "instruction": TASK, "write": True}
    deadline, answer = time.monotonic() + WAIT_SECONDS, None
    while time.monotonic() < deadline:
        try:
            answer = client.post("/apply", json=body)
        except httpx.TransportError as fault:
            say(f"  {path}: {fault}")
            return None
        if answer.status_code not in (429, 503):
            return answer
        time.sleep(float(answer.headers.get("retry-after", 1)))
    return answer


def _describe(answer: httpx.Response | None) -> str:
    return "no answer" if answer is None else f"{answer.status_code} {answer.json().get('status', '')}"
