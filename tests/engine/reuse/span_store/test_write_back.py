"""Puts do not wait, what waits can be had, and what cannot be written is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Event

import pytest

from engine.reuse.disk_tier import SpanHeader, WriteBack
from tests.engine.reuse.span_store.stores import header_of, text

HEADERS = [header_of(text(seed, 10), 100) for seed in range(5)]
KV = memoryview(bytes(range(100)))


class SlowTier:
    """A tier in memory that writes when it is let."""

    capacity_bytes = 1 << 20

    def __init__(self) -> None:
        self.kept: dict[SpanHeader, memoryview] = {}
        self.may_write = Event()
        self.fault: Exception | None = None
        self.takes = True

    def put(self, header: SpanHeader, payload: memoryview) -> bool:
        assert self.may_write.wait(60)
        if self.fault is not None:
            raise self.fault
        if self.takes:
            self.kept[header] = payload
        return self.takes

    def get(self, header: SpanHeader) -> memoryview | None:
        return self.kept.get(header)

    def headers(self) -> Iterable[SpanHeader]:
        return list(self.kept)


@pytest.fixture
def tier() -> SlowTier:
    return SlowTier()


@pytest.fixture
def write_back(tier: SlowTier) -> Iterator[WriteBack]:
    each = WriteBack(tier, most_waiting_bytes=250)
    yield each
    tier.may_write.set()
    each.close()


def test_what_waits_can_be_had_and_too_much_is_dropped(tier: SlowTier, write_back: WriteBack) -> None:
    assert [write_back.put(header, KV) for header in HEADERS[:3]] == [True, True, False]
    assert write_back.put(HEADERS[0], KV), "it waits already"
    assert [write_back.get(header) for header in HEADERS[:3]] == [KV, KV, None]
    assert write_back.num_dropped == 1
    assert not tier.kept
    tier.may_write.set()
    write_back.flush()
    assert list(write_back.headers()) == HEADERS[:2]
    assert [write_back.get(header) for header in HEADERS[:3]] == [KV, KV, None]
    assert write_back.put(HEADERS[2], KV), "there is room again"


def test_close_writes_what_waits_and_takes_no_more(tier: SlowTier, write_back: WriteBack) -> None:
    write_back.put(HEADERS[0], KV)
    tier.may_write.set()
    write_back.close()
    assert list(tier.kept) == HEADERS[:1]
    assert not write_back.put(HEADERS[1], KV)


def test_what_the_tier_does_not_take_is_counted_and_the_rest_goes_on(tier: SlowTier, write_back: WriteBack) -> None:
    tier.takes = False
    tier.may_write.set()
    write_back.put(HEADERS[0], KV)
    write_back.flush()
    tier.fault = ConnectionError("a tier on the network, badly written")
    write_back.put(HEADERS[1], KV)
    write_back.flush()
    assert write_back.num_faults == 2
    tier.takes, tier.fault = True, None
    write_back.put(HEADERS[2], KV)
    write_back.flush()
    assert list(tier.kept) == HEADERS[2:3]
    assert write_back.get(HEADERS[0]) is None
