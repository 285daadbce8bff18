"""Counts the files that a request runs through: `PYTHONPATH=$PWD python .ci/paths.py [--list] [--model NAME]`.

A path is the files of the five packages with a function executed, over all threads, without what runs at imports.
(a) POST /apply of a SEARCH/REPLACE edit, to the written file. (b) POST /apply of a lazy snippet that the model writes.
(c) A line of a watched file changes and a session asks its next question. (d) Start of `hunk serve`, to readiness and
to the first answer of /healthz. It runs the real service in this process, on a free port, with the model's weights.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from agent_runtime.cli.main import run

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(f"{ROOT}/{name}/" for name in ("agent_runtime", "editor", "engine", "kernels", "repo_cache"))
IMPORT_MACHINERY = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
CO_NEWLOCALS = 2  # bodies of modules and classes do not have it
TEXT = "import os\n\n\ndef area(width, height):\n    total = width * height\n    return total\n\n\ndef scale(x):\n"
TEXT += "    y = x + 1\n    return y\n"
BLOCK = "<<<<<<< SEARCH\n    y = x + 1\n=======\n    y = x + 2\n>>>>>>> REPLACE\n"
LAZY = "def area(width, height):\n    # ... existing code ...\n    return abs(total)\n"

recorded: dict[str, None] | None = None  # the files of the path in work, in the order of their first call


def record_call(frame: FrameType, event: str, _arg: object) -> None:
    """Note the file of a called function, unless an import calls it."""
    found, name = recorded, frame.f_code.co_filename
    if found is None or event != "call" or name in found or not name.startswith(PACKAGES):
        return
    if not frame.f_code.co_flags & CO_NEWLOCALS:
        return
    caller = frame.f_back
    while caller is not None:
        code = caller.f_code
        if code.co_filename in IMPORT_MACHINERY or (
            code.co_name == "<module>" and code.co_filename.startswith(PACKAGES)
        ):
            return
        caller = caller.f_back
    found[name] = None


def send(url: str, body: object) -> Any:
    """The JSON answer of a POST; a refusal is an error."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read() or b"null")


def wait_for(url: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.05)


def record(work: Callable[[], object]) -> list[str]:
    """The files that `work` runs through, and what other threads do until shortly after it."""
    global recorded
    recorded = found = {}
    work()
    time.sleep(0.3)
    recorded = None
    return list(found)


def drive(url: str, folder: Path, list_files: bool) -> None:
    """Send the requests to the service that starts in the main thread, print the paths, and stop it."""
    global recorded
    sys.setprofile(None)
    start = recorded if recorded is not None else {}
    wait_for(f"{url}/healthz")
    paths = {"d, to the first answer of /healthz": list(start)}
    wait_for(f"{url}/readyz")
    paths["d"], recorded = list(start), None
    time.sleep(1)
    paths["a"] = record(lambda: send(f"{url}/apply", {"path": "a.py", "edit": BLOCK, "write": True}))
    if "x + 2" not in (folder / "a.py").read_text():
        raise SystemExit("the edit was not written")
    edit = {"path": "a.py", "edit": LAZY, "mode": "model", "format": "lazy"}

    def merge_by_model() -> None:
        try:
            send(f"{url}/apply", edit)
        except urllib.error.HTTPError as refusal:  # a small model's merge may be refused by the checks
            print("b: refused:", refusal.read()[:160])

    paths["b"] = record(merge_by_model)
    session = f"{url}/sessions/{send(f'{url}/sessions', {'reuse': 'fast'})['id']}"
    send(f"{session}/read", {"paths": ["a.py", "b.py"]})
    send(f"{session}/ask", {"question": "What does scale do?", "max_tokens": 8})
    time.sleep(2)

    def change_and_ask() -> None:
        file = folder / "b.py"
        file.write_text(file.read_text().replace("value_3 = 3", "value_3 = 33"))
        time.sleep(2)
        send(f"{session}/ask", {"question": "And now?", "max_tokens": 8})

    paths["c"] = record(change_and_ask)
    for name, files in sorted(paths.items()):
        num_lines = sum(len(Path(file).read_text().splitlines()) for file in files)
        print(f"({name}) {len(files)} files of {num_lines} lines", flush=True)
        if list_files:
            print("".join(f"      {Path(file).relative_to(ROOT)}\n" for file in files), end="", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
    os._exit(0)


def main() -> None:
    global recorded
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="also name the files")
    parser.add_argument("--model", default="smollm2-135m", help="the model that merges (default: %(default)s)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    (folder / "a.py").write_text(TEXT)
    (folder / "b.py").write_text("".join(f"value_{i} = {i}\n" for i in range(300)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    recorded = {}
    threading.setprofile(record_call)
    threading.Thread(target=drive, args=(f"http://127.0.0.1:{port}", folder, args.list), daemon=True).start()
    sys.setprofile(record_call)
    sys.argv = ["hunk", "serve", "--root", str(folder), "--port", str(port), "--model", args.model]
    sys.argv += ["--log-level", "error"]
    run()


if __name__ == "__main__":
    main()
