"""Attackers in a process of their own: `python -m benchmarks.faults.attackers PORT KIND --seconds S`, from 127.0.0.2.

It prints what they got, counted: statuses, `cut` where the service closed the connection, `left` where they did.
`--token` is that of their tenant, which some kinds send. Kinds are the keys of `KINDS`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

ADDRESS = "127.0.0.2"
"""From here: shares of the service are by address where a request has no token."""

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Attack:
    """What each attacker knows."""

    port: int
    token: str
    until: float
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def head(self, method: str, path: str, num_bytes: int | None = None, token: str = "") -> bytes:
        """Return the head of a request; its body has so many bytes."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Content-Type: application/json"]
        lines += [] if num_bytes is None else [f"Content-Length: {num_bytes}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        return "\r\n".join([*lines, "", ""]).encode()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from the attackers' address; raises OSError."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ADDRESS, 0))

    async def count_status(self, reader: asyncio.StreamReader) -> None:
        """Wait for an answer, or the end of the connection."""
        with suppress(ConnectionError):
            status = await reader.read(12)
            self.counts[status[9:].decode() or "cut"] += 1
            return
        self.counts["cut"] += 1

    async def ask(self, request: bytes, timeout_s: float = TIMEOUT_S) -> None:
        """Send a request, and count what it gets; who waits no longer leaves."""
        writer = None
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self.open()
                writer.write(request)
                with suppress(ConnectionError):  # the answer may be there before all is sent
                    await writer.drain()
                status = (await reader.readexactly(12))[9:].decode()
            self.counts[status] += 1
        except TimeoutError:
            self.counts["left"] += 1
        except (OSError, EOFError):
            self.counts["cut"] += 1
            await asyncio.sleep(0.01)
        finally:
            if writer is not None:
                writer.transport.abort()


async def deep_bodies(attack: Attack) -> None:
    """JSON that is nested too deep, with a string that never ends, to what needs no token."""
    bodies = [b"[" * 65 + b"]" * 65 + b'"' + b'\\"' * count for count in (16_000, 25_000, 500_000)]
    while attack.goes_on():
        body = attack.rng.choice(bodies)
        method, path = attack.rng.choice([("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/"), ("POST", "/apply")])
        await attack.ask(attack.head(method, path, len(body)) + body)


async def bodies_of_nobody(attack: Attack) -> None:
    """58 MB of 62 without a token, and then nothing more."""
    await _send_unfinished(attack, "")


async def bodies_of_a_tenant(attack: Attack) -> None:
    """The same with a token that the service knows."""
    await _send_unfinished(attack, attack.token)


async def _send_unfinished(attack: Attack, token: str) -> None:
    while attack.goes_on():
        method, path = ("POST", "/apply") if token else attack.rng.choice([("GET", "/healthz"), ("POST", "/apply")])
        writer = None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(attack.until - time.monotonic()):
                reader, writer = await attack.open()
                writer.write(attack.head(method, path, 62_000_000, token))
                await asyncio.gather(_send(writer, b" " * (1 << 20), 58), attack.count_status(reader))
        if writer is not None:
            writer.transport.abort()
        await asyncio.sleep(0.05)


async def _send(writer: asyncio.StreamWriter, chunk: bytes, count: int) -> None:
    """As much of it as the service takes."""
    with suppress(ConnectionError):
        for _ in range(count):
            writer.write(chunk)
            await writer.drain()


async def large_bodies(attack: Attack) -> None:
    """With a token: a whole body of 60 MB, whose one string Python holds in four bytes a character."""
    body = b'{"edit": "' + b"x" * 60_000_000 + "\N{GRINNING FACE}".encode() + b'"}'
    while attack.goes_on():
        await attack.ask(attack.head("POST", "/apply", len(body), attack.token) + body)


async def methods(attack: Attack) -> None:
    """Methods that nobody knows, each another one of 8 KB."""
    while attack.goes_on():
        await attack.ask(attack.head(f"M{attack.rng.random():.9f}".replace(".", "") + "A" * 8000, "/healthz"))


async def wrong_tokens(attack: Attack) -> None:
    """Tokens that the service does not know."""
    while attack.goes_on():
        await attack.ask(attack.head("GET", "/stats", token=f"hunk_{attack.rng.randrange(10**12):012d}_{'x' * 43}"))


async def connections(attack: Attack) -> None:
    """Connections with heads that never end; more of them than the service takes."""
    while attack.goes_on():
        writer = None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(attack.until - time.monotonic()):
                reader, writer = await attack.open()
                writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                await attack.count_status(reader)
        if writer is not None:
            writer.transport.abort()
        await asyncio.sleep(0.2 + attack.rng.random())


async def slow_clients(attack: Attack) -> None:
    """With a token: a body that comes byte by byte, or a large answer that nobody reads."""
    content = json.dumps({"original": "a = 1\n" + "# x\n" * 200_000, "edit": _REPLACED}).encode()
    while attack.goes_on():
        writer = None
        with suppress(OSError, EOFError):
            _, writer = await attack.open()
            if attack.rng.random() < 0.1:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(attack.head("POST", "/apply", len(content), attack.token) + content)
                while attack.goes_on() and not writer.is_closing():
                    await asyncio.sleep(0.5)
            else:
                writer.write(attack.head("POST", "/apply", 500, attack.token))
                while attack.goes_on():
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.2)
            attack.counts["left"] += 1
        if writer is not None:
            writer.transport.abort()


async def slow_edits(attack: Attack) -> None:
    """With a token: edits that rules work long on; half of the senders leave after a second."""
    bodies = [json.dumps(body | {"mode": "deterministic"}).encode() for body in slow_bodies()]
    while attack.goes_on():
        body = attack.rng.choice(bodies)
        timeout_s = 1.0 if attack.rng.random() < 0.5 else max(0.1, attack.until - time.monotonic())
        await attack.ask(attack.head("POST", "/apply", len(body), attack.token) + body, timeout_s)


_REPLACED = json.dumps({"old_string": "a = 1", "new_string": "a = 2"})


def slow_bodies() -> list[dict[str, str]]:
    """The edits of the security review that held the processor longest, and HTML that its parser is slow with."""
    functions = "".join(f"def f{at}(x):\n    y = x + {at}\n    return y\n\n" for at in range(3500))
    same = "    x = 1\n" * 16_000
    lines = "".join(f"l{at}\n" for at in range(16_000))
    missing = "".join(
        f"@@ -1,3 +1,3 @@\n def z{at}(x):\n-    y = q + {at}\n+    y = x - {at}\n     return y\n" for at in range(3500)
    )
    patches = "".join(f"@@ nope {at}\n-    x = {at}\n+    y\n" for at in range(16_000))
    markers = "".join(
        f"# ... existing code ...\n\ndef f{at}(x):\n    y = x - {at}\n    return y\n\n" for at in range(0, 3500, 2)
    )
    return [
        {"path": "a.py", "original": functions, "edit": "--- a.py\n+++ a.py\n" + missing},
        {"path": "a.py", "original": same, "edit": f"*** Begin Patch\n*** Update File: a.py\n{patches}*** End Patch\n"},
        {"path": "a.txt", "original": lines, "edit": "".join(f"l{at * 7919 % 16_000}\n" for at in range(16_000))},
        {"path": "a.py", "original": functions, "edit": markers + "# ... existing code ...\n"},
        {"path": "a.html", "original": "a = 1\n" + "<div>" * 60_000, "edit": _REPLACED},
    ]


KINDS: dict[str, tuple[int, Callable[[Attack], Awaitable[None]]]] = {
    "deep-bodies": (8, deep_bodies),
    "bodies-of-nobody": (9, bodies_of_nobody),
    "bodies-of-a-tenant": (9, bodies_of_a_tenant),
    "large-bodies": (1, large_bodies),
    "methods": (8, methods),
    "wrong-tokens": (8, wrong_tokens),
    "connections": (300, connections),
    "slow-clients": (40, slow_clients),
    "slow-edits": (8, slow_edits),
}
"""How many attackers at once, and what each does until the time is over."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.attackers", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--token", default="")
    options = parser.parse_args(arguments)
    os.nice(19)  # the service is attacked, not the machine that the attackers share with it
    json.dump(asyncio.run(_run(options)), sys.stdout)


async def _run(options: argparse.Namespace) -> Counter[str]:
    count, kind = KINDS[options.kind]
    counts: Counter[str] = Counter()
    until = time.monotonic() + options.seconds
    attacks = [Attack(options.port, options.token, until, random.Random(seed), counts) for seed in range(count)]
    await asyncio.gather(*(kind(attack) for attack in attacks))
    return counts


if __name__ == "__main__":
    main()
