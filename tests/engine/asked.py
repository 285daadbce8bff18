"""Requests of any kind to tiny models, many of which share a prefix."""

from __future__ import annotations

from hypothesis import strategies as st

from engine.types import GenerationRequest
from tests.engine.tiny import VOCAB_SIZE

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 4, 6]


@st.composite
def requests(draw: st.DrawFn) -> tuple[GenerationRequest, int | None, int]:
    """A request that may share a prefix with the others, after how many steps it is given up, and a drafter's seed."""
    shared = draw(st.integers(0, len(PROMPT)))
    own = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6))
    request = GenerationRequest(
        prompt=[*PROMPT[:shared], *own],
        max_new_tokens=draw(st.integers(1, 30)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 9)),
        stop_ids=frozenset(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2))),
        stop=draw(st.sampled_from([(), (b"a",), (b"</x>", b"\n\n")])),
    )
    return request, draw(st.one_of(st.none(), st.integers(0, 3))), draw(st.integers(0, 99))
