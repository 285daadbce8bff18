"""locust: mixed load of many users, some of whom leave half way, without a fault; the service is whole afterwards."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.environments import program
from tests.e2e.service import Running

pytestmark = pytest.mark.e2e

SECONDS = 20


def test_mixed_load_ends_without_a_fault_and_leaves_nothing_behind(service: Running, tmp_path: Path) -> None:
    command = [program("locust", "locust"), "--headless", "--json", "--only-summary", "--host", service.url]
    command += ["--users", "44", "--spawn-rate", "44", "--run-time", f"{SECONDS}s", "--stop-timeout", "60"]
    command += ["--locustfile", Path(__file__).with_name("locustfile.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    by_name = {row["name"]: row for row in json.loads(done.stdout)}
    assert by_name["/apply"]["num_requests"] > SECONDS
    for name in ("/apply", "/apply by the model", "/apply streamed", "/stats", "/metrics", "/readyz"):
        assert by_name[name]["num_requests"] > 0, f"nobody asked for {name}"
        assert by_name[name]["num_failures"] == 0, done.stderr[-4000:]

    deadline = time.monotonic() + 60
    while (stats := httpx.get(f"{service.url}/stats", timeout=60).json())["queue"] != {"running": 0, "waiting": 0}:
        assert time.monotonic() < deadline, "what users left behind still runs"
        time.sleep(0.2)
    pages = stats["cache"]["pages"]
    assert pages["in_use"] == 0, "and holds memory"
    assert "hunk_http_requests_in_flight 1.0" in httpx.get(f"{service.url}/metrics").text
