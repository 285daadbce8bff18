"""The eviction queue gives the same order as sorting all that is queued."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache.prefix_cache import ChainNode, EvictionQueue

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "discard", "pop"]),
        st.integers(0, 9),
        st.integers(1, 4),
        st.sampled_from([0.0, 0.0, 2.0, 5.0, 20.0]),
    ),
    max_size=60,
)


@given(STEPS)
def test_pages_go_in_the_order_of_a_sort(steps: list[tuple[str, int, int, float]]) -> None:
    queue = EvictionQueue()
    queued: dict[int, ChainNode] = {}
    uses: dict[int, int] = {}
    for now, (step, page, depth, retain_s) in enumerate(steps):
        last_used = now // 5  # several pages are used together
        if step == "push" and uses.get(page) != last_used:
            uses[page] = last_used
            queued[page] = ChainNode(b"", depth=depth, page=page, last_used=last_used)
            queued[page].retained_until = now + retain_s if retain_s else 0.0
            queue.push(queued[page])
        elif step == "push" and page in queued:  # held and given back without being used
            queue.discard(page)
            queue.push(queued[page])
        elif step == "discard":
            queue.discard(page)
            queued.pop(page, None)
        elif step == "pop" and queued:
            node = queue.pop(now)
            assert queued.pop(node.page) is node
            assert all(_order(node, now) <= _order(other, now) for other in queued.values())
        assert len(queue) == len(queued)
        assert all((page in queue) == (page in queued) for page in range(10))


def _order(node: ChainNode, now: float) -> tuple[float, int, int]:
    return node.retained_until if node.retained_until > now else 0.0, node.last_used, -node.depth


def test_stale_entries_are_swept() -> None:
    queue = EvictionQueue()
    node = ChainNode(b"", depth=1, page=0)
    for use in range(10_000):
        node.last_used, node.retained_until = use, float(use % 2)
        queue.push(node)
    assert len(queue._by_use) + len(queue._by_expiry) < 100
    assert queue.pop(0.0) is node
