"""An HTTP client in a process of its own: `python -m benchmarks.serve.client PORT FILE --clients N --seconds S`.

FILE holds a JSON object a line: `body`, and `sha256`, which the answer has to have ("": any answer that is no fault).
A line without a body asks `GET /healthz` on a connection of its own.
It prints one JSON object: latencies in milliseconds, counts by status, and what went wrong otherwise. Kinds of clients:
`steady` sends the next request when it has the answer; `slow` reads a few bytes at a time; `leaving` closes the
connection in the middle of its request, or while it waits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_S = 120.0


@dataclass
class Tally:
    """What one process of clients has seen. `wrong` are answers that are not the file they should be."""

    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as bytes, and what its answer has to hold."""

    content: bytes
    expected: bytes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the clients and print what they saw."""
    options = _options(arguments)
    requests = [_read_edit(json.loads(line), options) for line in options.file.read_text().splitlines()]
    tally = Tally()
    asyncio.run(_run(options, requests, tally))
    json.dump(vars(tally), sys.stdout)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve.client", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kind", choices=("steady", "slow", "leaving"), default="steady")
    parser.add_argument("--token", default="", help="with which edits are sent")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="of a steady client before its next request")
    return parser.parse_args(arguments)


def _read_edit(row: dict[str, str], options: argparse.Namespace) -> Sent:
    host = f"Host: 127.0.0.1:{options.port}\r\n"
    if not row["body"]:
        return Sent(f"GET /healthz HTTP/1.1\r\n{host}Connection: close\r\n\r\n".encode(), b"")
    content = row["body"].encode()
    token = f"Authorization: Bearer {options.token}\r\n" if options.token else ""
    head = (
        f"POST /apply HTTP/1.1\r\n{host}{token}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    expected = f'"sha256":"{row["sha256"]}"' if row["sha256"] else ""
    return Sent(head.encode() + content, expected.encode())


async def _run(options: argparse.Namespace, requests: Sequence[Sent], tally: Tally) -> None:
    started = time.perf_counter()
    until = started + options.seconds
    rngs = [random.Random(number) for number in range(options.clients)]
    if options.kind == "steady":
        await asyncio.gather(*(_steady(options, requests, until, rng, tally) for rng in rngs))
    else:
        client = _slow if options.kind == "slow" else _leave
        await asyncio.gather(*(client(options.port, requests, until, rng, tally) for rng in rngs))
    tally.seconds = time.perf_counter() - started


async def _steady(
    options: argparse.Namespace, requests: Sequence[Sent], until: float, rng: random.Random, tally: Tally
) -> None:
    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while time.perf_counter() < until:
        request = rng.choice(requests)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                stream = stream or await asyncio.open_connection("127.0.0.1", options.port)
                reader, writer = stream
                writer.write(request.content)
                status, content, is_last = await _answer(reader)
        except (OSError, EOFError, TimeoutError) as error:
            tally.faults[type(error).__name__] += 1
            stream = None
            await asyncio.sleep(0.05)
            continue
        tally.latencies_ms.append((time.perf_counter() - started) * 1e3)
        tally.statuses[str(status)] += 1
        if status == 200 and request.expected not in content:
            tally.wrong += 1
        if is_last:
            writer.close()
            stream = None
        await asyncio.sleep(0.2 if status == 429 else options.pause_ms / 1e3)
    if stream is not None:
        stream[1].close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Return its status, its body, and whether the connection ends with it."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
    return int(head[9:12]), await reader.readexactly(length), b"connection: close" in lines


async def _slow(port: int, requests: Sequence[Sent], until: float, rng: random.Random, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    while time.perf_counter() < until:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, ("127.0.0.1", port))
                await loop.sock_sendall(connection, rng.choice(requests).content)
                first = await loop.sock_recv(connection, 12)
                tally.statuses[first[9:12].decode()] += 1
                while time.perf_counter() < until and await loop.sock_recv(connection, 16):
                    await asyncio.sleep(0.05)
            except OSError as error:
                tally.faults[type(error).__name__] += 1


async def _leave(port: int, requests: Sequence[Sent], until: float, rng: random.Random, tally: Tally) -> None:
    while time.perf_counter() < until:
        request = rng.choice(requests)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            half = rng.random() < 0.5
            writer.write(request.content[: len(request.content) // 2] if half else request.content)
            await writer.drain()
            await asyncio.sleep(rng.random() * 0.3)
            writer.transport.abort()
            tally.statuses["left in its request" if half else "left waiting"] += 1
        except OSError as error:
            tally.faults[type(error).__name__] += 1


if __name__ == "__main__":
    main()
