"""What waits for a client: all of it, in order, and in no more memory than it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from agent_runtime.request_context import Piece
from agent_runtime.server.service import MAX_PIECES, EventQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take")),
        st.tuples(st.just("phase"), st.sampled_from(["", "a.py"]), st.sampled_from(["prompt", "decode"])),
        st.tuples(
            st.just("pieces"),
            st.sampled_from(["", "a.py"]),
            st.integers(0, 2),
            st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["copied", "generated"])), min_size=1, max_size=4),
        ),
    ),
    max_size=60,
)


def told_of(events: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What a client knows of each file: its phases, and between them, each region's characters with their origins."""
    known: dict[str, list[Any]] = {}
    for event in events:
        of_file = known.setdefault(event.get("path", ""), [{}])
        if "phase" in event:
            of_file += [event["phase"], {}]
        else:
            characters = [(one, piece["origin"]) for piece in event["pieces"] for one in piece["text"]]
            of_file[-1].setdefault(event["region"], []).extend(characters)
    return known


PIECES = ("pieces", "", 0, [("x", "copied")])


@given(STEPS)
@example([PIECES, ("phase", "", "prompt"), PIECES])
@example([PIECES, ("phase", "a.py", "prompt"), PIECES, ("take",), PIECES])
def test_whenever_it_is_taken_it_says_what_was_told(steps: list[Any]) -> None:
    async def run() -> None:
        events = EventQueue()
        taken: list[dict[str, Any]] = []
        told: list[dict[str, Any]] = []
        for kind, *rest in steps:
            if kind == "phase":
                path, phase = rest
                events.on_phase(phase, path)
                told.append({"phase": phase, "path": path})
            elif kind == "pieces":
                path, region, pairs = rest
                events.on_pieces(region, [Piece(*pair) for pair in pairs], path)
                told.append({"region": region, "path": path, "pieces": [{"text": t, "origin": o} for t, o in pairs]})
            else:
                taken += [event.data() for event in events.take()]
        taken += [event.data() for event in events.take()]
        assert told_of(taken) == told_of(told)

    asyncio.run(run())


def test_what_nobody_takes_is_one_event_of_few_pieces() -> None:
    async def run() -> None:
        events = EventQueue()
        for number in range(20_000):
            events.on_pieces(number % 2, [Piece("x", "copied")])
        waiting = events.take()
        assert len(waiting) == 2
        for event in waiting:
            pieces = event.data()["pieces"]
            assert len(pieces) <= MAX_PIECES
            assert sum(len(piece["text"]) for piece in pieces) == 10_000

    asyncio.run(run())


def test_it_is_woken_from_another_thread_and_waits_no_longer_than_it_is_told() -> None:
    async def run() -> None:
        events = EventQueue()
        assert not await events.wait(0.01)
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(events.wait(30))
        await loop.run_in_executor(None, events.on_phase, "merge")
        assert await waiting
        events.take()
        assert not await events.wait(0.01), "what was taken is no longer there"

    asyncio.run(run())
