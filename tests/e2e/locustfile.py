"""What locust's users do: most send edits that rules merge, some the model, some leave, some only look.

Run by locust in an environment of its own (`test_locust.py`): nothing of ours is imported here.
"""

import random

from locust import HttpUser, between, constant, task

LINES = [f"value_{number} = {number}" for number in range(100)]
FILE = "\n".join(LINES) + "\n"


def edit():
    number = random.randrange(100)
    old = f"value_{number} = {number}"
    return old, f"<<<<<<< SEARCH\n{old}\n=======\n{old}0\n>>>>>>> REPLACE\n"


class ByRule(HttpUser):
    weight = 16
    wait_time = between(0, 0.2)

    @task
    def apply(self):
        old, block = edit()
        with self.client.post(
            "/apply", json={"original": FILE, "edit": block, "mode": "deterministic"}, catch_response=True
        ) as answer:
            if answer.status_code == 429:
                answer.success()
            elif answer.status_code != 200 or answer.json()["merged"] != FILE.replace(old + "\n", old + "0\n"):
                answer.failure(f"{answer.status_code}: {answer.text[:200]}")


class ByModel(HttpUser):
    weight = 2
    wait_time = between(0.5, 1)

    @task
    def apply(self):
        _, block = edit()
        body = {"original": FILE[:400], "edit": block, "mode": "model", "max_tokens": 16}
        with self.client.post("/apply", json=body, name="/apply by the model", catch_response=True) as answer:
            if answer.status_code in (200, 429):
                answer.success()

    @task
    def stream(self):
        _, block = edit()
        body = {"original": FILE[:400], "edit": block, "mode": "model", "max_tokens": 16, "stream": True}
        with self.client.post("/apply", json=body, name="/apply streamed", stream=True, catch_response=True) as answer:
            events = [line for line in answer.iter_lines() if line.startswith(b"event:")]
            if answer.status_code == 429:
                answer.success()
            elif not events or events[-1] not in (b"event: result", b"event: problem"):
                answer.failure(f"{answer.status_code}, last event {events[-1:]}")


class Leaving(HttpUser):
    weight = 2
    wait_time = constant(0.3)

    @task
    def leave(self):
        _, block = edit()
        body = {"original": FILE, "edit": block, "mode": "model", "max_tokens": 500, "stream": True}
        with self.client.post("/apply", json=body, name="left half way", stream=True, catch_response=True) as answer:
            answer.success()  # and closes the connection


class Looking(HttpUser):
    weight = 2
    wait_time = constant(0.5)

    @task
    def look(self):
        self.client.get("/stats")
        self.client.get("/metrics")
        self.client.get("/readyz")
