"""Real models behind the real command and the real service, whatever they write."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.agent_runtime.serving import asking

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES, README = ROOT / "examples", ROOT / "README.md"
HUNK = Path(sys.executable).with_name("hunk")
CART, CART_EDIT = EXAMPLES / "shopping_cart.ts", EXAMPLES / "shopping_cart.lazy.txt"


def test_a_real_model_writes_a_merge_that_passes_the_checks_or_is_rejected() -> None:
    before = CART.read_bytes()
    command = [HUNK, "apply", CART, "--edit", CART_EDIT, "--mode", "model", "--model", "qwen2.5-coder-0.5b", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert re.search(
        r"loaded in [\d.]+ s \((bfloat16|int8) weights, .* activations, bfloat16 KV, peak memory [\d.]+ GB\)",
        done.stderr,
    ), done.stderr
    answer = json.loads(done.stdout)
    assert (answer["status"], done.returncode) in (("merged", 0), ("rejected", 3))
    assert (answer["status"] == "merged") == all(check["ok"] for check in answer["checks"])
    assert (answer["method"], answer["certainty"]) == ("model", "model")
    usage = answer["usage"]
    assert usage["accepted"] + usage["rejected"] == usage["drafted"]
    assert usage["cached"] + usage["recomputed"] == usage["prompt"]
    assert 0 < usage["forwards"] <= usage["completion"] + usage["prefill_forwards"]
    assert CART.read_bytes() == before, "nothing is written without --write"


@dataclass
class Served:
    """A running `hunk serve`."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def hunk_serve(*arguments: str | Path) -> Iterator[Served]:
    command = [HUNK, "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://[\d.]+:\d+", process.stderr.readline())
            assert found, process.stderr.read()
            yield Served(found[0], process)
        finally:
            process.kill()


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + 120
    while httpx.get(f"{url}/readyz").status_code != 200:
        assert time.monotonic() < deadline, "the model was not loaded"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with hunk_serve("--model", "smollm2-135m", "--root", EXAMPLES, "--context", "4096") as served:
        wait_until_ready(served.url)
        yield served


def test_the_service_answers_healthz_while_the_model_merges(service: Served) -> None:
    """At this temperature the model finds no end."""
    answers: list[httpx.Response] = []
    body = {"path": CART.name, "edit": CART_EDIT.read_text(), "mode": "model", "draft": "none", "max_tokens": 48}
    body["temperature"] = 10.0
    merging = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{service.url}/apply", json=body, timeout=600))
    )
    merging.start()
    num_answered = 0
    while merging.is_alive():
        num_answered += httpx.get(f"{service.url}/healthz", timeout=60).status_code == 200
    merging.join()
    assert num_answered >= 1
    answer = answers[0].json()
    assert answer["method"] == "model"
    assert answer["usage"]["forwards"] >= 48, "plain decoding takes a pass a token"
    assert answer["status"] == "rejected", "a merge that the token limit cut must not pass"
    assert "truncated_tail" in {check["name"] for check in answer["checks"] if not check["ok"]}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed; apt-get install curl")
def test_curl_as_the_readme_has_it_merges_by_rule(service: Served) -> None:
    snippet = re.search(r"^curl -s http://127.0.0.1:8311(/apply .*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert snippet, "README.md has no curl command"
    command = ["sh", "-c", f"curl -s {service.url}{snippet[1]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["method"], answer["rung"]) == ("merged", "deterministic", "exact")
    assert "+        elapsed = max(0.0, now - self._updated)" in answer["diff"]


def test_the_same_apply_again_reuses_the_prompt_and_gives_the_same_file() -> None:
    """How far a draft goes depends on the clock, and near ties on that; in the batch-invariant setting nothing does."""
    body = {"path": CART.name, "edit": CART_EDIT.read_text(), "mode": "model", "max_tokens": 64}
    options = ("--context", "4096", "--batch-invariant")
    with hunk_serve("--model", "smollm2-135m", "--root", EXAMPLES, *options) as served:
        wait_until_ready(served.url)
        first, second = (httpx.post(f"{served.url}/apply", json=body, timeout=120).json() for _ in range(2))
    assert second["usage"]["cached"] == second["usage"]["prompt"] - 1
    assert second["merged"] == first["merged"]


def test_the_command_reaches_the_service_and_writes_here(service: Served, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def double(x):\n    return x + x\n")
    edit = "<<<<<<< SEARCH\n    return x + x\n=======\n    return 2 * x\n>>>>>>> REPLACE\n"
    command = [HUNK, "apply", file, "--edit", "-", "--url", service.url, "--write"]
    done = subprocess.run(command, input=edit, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "def double(x):\n    return 2 * x\n"


def test_a_file_longer_than_the_context_is_refused_by_name_before_it_is_run(service: Served) -> None:
    body = {"original": "x = 1\n" * 4000, "edit": "x = 2\n# ... existing code ...\n", "mode": "model", "scope": "file"}
    response = httpx.post(f"{service.url}/apply", json=body, timeout=60)
    assert response.status_code == 413
    assert "context" in response.json()["detail"]


def test_a_character_that_the_model_has_no_token_for_is_refused_and_never_dropped(service: Served) -> None:
    body = {"original": "a = '\x04'\nb = 1\n", "edit": "b = 2\n# ... existing code ...\n", "mode": "model"}
    response = httpx.post(f"{service.url}/apply", json=body, timeout=60)
    assert response.status_code == 422
    assert response.json()["type"].endswith(":bad-file")


def test_ctrl_c_ends_the_service_quietly() -> None:
    with hunk_serve("--model", "smollm2-135m") as served:
        httpx.get(f"{served.url}/healthz")
        served.process.send_signal(signal.SIGINT)
        _, stderr = served.process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert served.process.returncode == 130, stderr


def test_ctrl_c_ends_the_service_in_the_middle_of_an_edit() -> None:
    body = {"original": "a = 1\n" * 50, "edit": "b = 2\n", "mode": "model", "draft": "none", "max_tokens": 2500}
    body["temperature"] = 10.0  # with which it finds no end
    with hunk_serve("--model", "smollm2-135m", "--context", "4096") as served:
        wait_until_ready(served.url)
        with asking(served.url, body) as connection:
            for _ in range(3):  # what comes later is answered later
                httpx.get(f"{served.url}/healthz")
            served.process.send_signal(signal.SIGINT)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        _, stderr = served.process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert served.process.returncode == 130, stderr
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"the service is ending" in answer


def test_a_model_that_turns_out_damaged_ends_the_service_with_4(tmp_path: Path) -> None:
    model = tmp_path / "damaged.gguf"
    model.write_bytes(b"GGUF" + os.urandom(4096))
    command = [HUNK, "serve", "--port", "0", "--model", model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4
    assert "damaged.gguf" in done.stderr
    assert "Traceback" not in done.stderr
