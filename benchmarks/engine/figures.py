"""From tokens and their times to the figures that are reported."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.engine.workload import LOAD_STREAMS
from benchmarks.peers.jobs import Answer

Figures = dict[str, float]
"""Names of figures, as they stand in the report, and their values."""

RATE, OF_ITS_OWN = "_tok_s", ("_share", "_ratio_16")
"""How names of rates end, of which more is better, and names of what compares a contestant with itself or with the
machine; of all other figures less is better."""


def figures(measure: str, answers: Sequence[Answer]) -> Figures:
    """What one run of a measure says."""
    kind, _, size = measure.partition(" ")
    if kind == "prefill":
        return {f"prefill_{size}_tok_s": int(size) / time_to_first(answers[0])}
    if kind == "decode":
        return {f"decode_{size}_tok_s": decode_rate(answers), f"throughput_{size}_tok_s": throughput(answers)}
    if kind == "load":
        streams, late = answers[:LOAD_STREAMS], answers[LOAD_STREAMS:]
        waits = [time_to_first(answer) for answer in late]
        return {
            "load_ttft_p50_ms": 1e3 * statistics.median(waits),
            "load_ttft_max_ms": 1e3 * max(waits),
            "load_gap_p50_ms": 1e3 * statistics.median(gaps(streams, late[0].arrived)),
            "load_gap_max_ms": 1e3 * max(gaps(streams, late[0].arrived)),
        }
    assert kind == "prefix", measure
    cold, cached = (time_to_first(answer) for answer in answers)
    return {"prefix_cold_ms": 1e3 * cold, "prefix_cached_ms": 1e3 * cached, "prefix_cached_share": cached / cold}


def time_to_first(answer: Answer) -> float:
    """Seconds from submission to the first token."""
    return answer.times[0] - answer.arrived


def decode_rate(answers: Sequence[Answer]) -> float:
    """Tokens a second of all together, while all decode: from the last one's first token to the first one's end.

    Where they never all do, because the contestant takes them one by one, it is the throughput.
    """
    start = max(answer.times[0] for answer in answers)
    end = min(answer.times[-1] for answer in answers)
    if end <= start:
        return throughput(answers)
    return sum(start < at <= end for answer in answers for at in answer.times) / (end - start)


def throughput(answers: Sequence[Answer]) -> float:
    """Output tokens a second from the first submission to the last token, the prompts' prefill included."""
    seconds = max(answer.times[-1] for answer in answers) - min(answer.arrived for answer in answers)
    return sum(len(answer.times) for answer in answers) / seconds


def gaps(streams: Sequence[Answer], since: float) -> list[float]:
    """Seconds between neighbouring tokens of each stream, of those that come after `since`."""
    return [
        later - earlier
        for stream in streams
        for earlier, later in zip(stream.times, stream.times[1:], strict=False)
        if later > since
    ]


def advantage(name: str, ours: float, theirs: float) -> float | None:
    """How many times better ours is: above 1, ours is ahead. None of figures that are not compared."""
    if name.endswith(OF_ITS_OWN):
        return None
    return ours / theirs if name.endswith(RATE) else theirs / ours
