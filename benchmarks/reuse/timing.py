"""Times to the first token of a second turn: cold, behind the exact prefix, in each mode, and a peer's.

Every time has a first turn of its own before it, with nothing cached, so that no mode finds what another has left; that
first turn, of the same length, is the cold time. All take turns, round after round, so that drift meets all alike.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.contestant import Contestant
from benchmarks.peers.jobs import Arrival, Job
from benchmarks.reuse.pairs import EditPair
from engine.reuse import PromptSegment, Reuse

COLD = "cold"
FLOOR = "floor"
LAST = "exact"
"""The mode that is measured last: then the whole second prompt is cached, behind which the floors are measured."""


@dataclass(slots=True)
class PairTimes:
    """Seconds to the first token by mode or peer, one a round; `floor`s by mode: a pass over what it computed.

    usage: by mode, what became of the second prompt's tokens. tokens: by mode or peer, the first token.
    """

    id: str
    source: str
    prompt: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    floors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)


def measure(
    ours: Contestant, peers: Sequence[Contestant], pairs: Sequence[EditPair], modes: Sequence[str], rounds: int
) -> list[PairTimes]:
    """Measure all pairs, `rounds` times. The exact mode is measured in any case."""
    found = [PairTimes(pair.id, pair.source, _num_tokens(pair.second)) for pair in pairs]
    others = [mode for mode in modes if mode != LAST]
    for number in range(rounds):
        for pair, times in zip(pairs, found, strict=True):
            print(f"round {number + 1} of {rounds}: {pair.id}", file=sys.stderr, flush=True)
            for mode in (others if number % 2 == 0 else others[::-1]) + [LAST]:
                if mode != "balanced" or pair.overlaid:
                    _run_ours(ours, pair, mode, times, f"{pair.id}:{mode}:{number}")
            _run_floors(ours, pair, times, f"{pair.id}:{LAST}:{number}")
            for peer in peers:
                _run_peer(peer, pair, times, f"{pair.id}:{number}")
    return found


def _run_ours(ours: Contestant, pair: EditPair, mode: str, times: PairTimes, salt: str) -> None:
    ours.ask("forget")
    second = pair.overlaid if mode == "balanced" else pair.second
    engine_mode = "exact" if mode == "balanced" else mode
    times.seconds[COLD].append(ours.ask("turn", _asked(pair.first, engine_mode, salt))["seconds"])
    answer = ours.ask("turn", _asked(second, engine_mode, salt))
    times.seconds[mode].append(answer.pop("seconds"))
    times.tokens[mode] = answer.pop("token")
    times.usage[mode] = answer


def _run_floors(ours: Contestant, pair: EditPair, times: PairTimes, salt: str) -> None:
    prompt = _ids(pair.second)
    for mode, usage in times.usage.items():
        if mode != LAST:
            asked = {"prompt_ids": prompt, "num_tokens": usage["recomputed"], "salt": salt}
            times.floors[mode].append(ours.ask("floor", asked))


def _run_peer(peer: Contestant, pair: EditPair, times: PairTimes, salt: str) -> None:
    for segments, name in ((pair.first, f"{peer.name} {COLD}"), (pair.second, peer.name)):
        (answer,) = peer.run(Job(salt, (Arrival(tuple(_ids(segments)), 1),)))
        times.seconds[name].append(answer.times[0] - answer.arrived)
        times.tokens[name] = answer.token_ids[0]


def _asked(segments: Sequence[PromptSegment], mode: Any, salt: str) -> dict[str, Any]:
    ends = Reuse.of(segments, mode).segment_ends
    return {"prompt_ids": _ids(segments), "segment_ends": list(ends), "mode": mode, "salt": salt}


def _ids(segments: Sequence[PromptSegment]) -> list[int]:
    return [token for segment in segments for token in segment.token_ids]


def _num_tokens(segments: Sequence[PromptSegment]) -> int:
    return sum(len(segment.token_ids) for segment in segments)
