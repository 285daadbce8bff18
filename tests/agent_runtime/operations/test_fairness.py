"""One tenant floods the service, another sends a single edit: it goes before what the first has waiting."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx

from tests.security.guarded import Guarded, guarded

LINES = 3000
LONG = "".join(f"value_{number} = {number}\n" for number in range(LINES))
EDIT = "<<<<<<< SEARCH\nvalue_7 = 7\n=======\nvalue_7 = 8\n>>>>>>> REPLACE\n"
NUM_FLOODING = 40
WANTED = {"flood": ("flood", ("apply",)), "calm": ("calm", ("apply", "read"))}


def num_in_flight(service: Guarded) -> int:
    text = service.ask("GET", "/metrics", "calm").text
    line = next(line for line in text.splitlines() if line.startswith("hunk_http_requests_in_flight "))
    return int(float(line.split()[1])) - 1  # without this question


def test_a_single_edit_goes_before_a_flood(tmp_path: Path) -> None:
    answered: list[int] = []
    with guarded(tmp_path, wanted=WANTED) as service:  # type: ignore[arg-type]

        def send() -> None:
            headers = {"authorization": f"Bearer {service.tokens['flood']}"}
            body = {"original": LONG, "edit": EDIT}
            answered.append(httpx.post(f"{service.url}/apply", json=body, headers=headers, timeout=120).status_code)

        threads = [threading.Thread(target=send) for _ in range(NUM_FLOODING)]
        for thread in threads:
            thread.start()
        while num_in_flight(service) + len(answered) < NUM_FLOODING:  # until all have come
            time.sleep(0.005)
        before = len(answered)
        calm = service.ask("POST", "/apply", "calm", json={"original": "value_7 = 7\n", "edit": EDIT})
        between = len(answered) - before
        for thread in threads:
            thread.join()
    assert calm.json()["status"] == "merged"
    assert answered == [200] * NUM_FLOODING
    assert NUM_FLOODING - before > 12, "too few waited to tell anything: make the files longer"
    assert between <= 8, f"{between} of the flood's edits were answered before the one that came behind them"
